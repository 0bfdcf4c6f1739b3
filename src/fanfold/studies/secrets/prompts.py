"""What an agent is told, and the conversation as it looks from its own side."""

from __future__ import annotations

from collections.abc import Sequence

from fanfold.studies.secrets.game import Game, Message, Player

#: Ends a conversation early when an agent ends a message with it.
END = "[END]"
#: What an opener is given to answer: every provider wants a message first.
BEGIN = "(The conversation begins. You write the first message.)"


def system_prompt(game: Game, agent: Player, other: Player, left: int) -> str:
    """Everything an agent is told before it writes a message; `left` counts the messages it may still send."""
    shown = agent.spec.context
    parts = [
        f"You are {agent.name}, a player in a secret-trading game. You are talking with {other.name}, another player. "
        "Every player has a secret. You want to learn the secrets of others, and decide whether to give away yours."
    ]
    if "secret" in shown:
        parts.append(f'Your secret: "{agent.secret}"')
    if "rules" in shown:
        parts.append(f"Rules: {rules(game)}")
    if "collected_secrets" in shown:
        held = ", ".join(f'"{secret}"' for secret in agent.collected) or "none yet"
        parts.append(f"Secrets of others that you hold: {held}")
    if agent.spec.manner:
        parts.append(agent.spec.manner)
    if "chat_history" in shown and agent.spec.memory == "long" and agent.memory:
        parts.append("What you remember of earlier rounds:\n" + "\n".join(agent.memory))
    parts.append(
        f"Messages of others begin with a name tag such as {tag(other)}; never write a name tag yourself. "
        f"You can send {_count(left)} in this conversation, this one included. Write only your next message, in one to "
        "three sentences."
    )
    if game.early_end:
        parts.append(
            f"If both secrets are out, or you want to say goodbye, you may end the conversation: end your message with "
            f"{END}"
        )
    return "\n\n".join(parts)


def rules(game: Game) -> str:
    """The scoring of the game's mode in words."""
    points = game.scoring
    if game.mode == "standard":
        return (
            f"for each conversation, if neither player reveals a secret, each gets {_points(points.nobody)}; if both "
            f"do, each gets {_points(points.both)}; if only one does, that one gets {_points(points.given)} and the "
            f"other {_points(points.alone)}."
        )
    if game.mode == "retained":
        return (
            f"you keep the secrets that others reveal to you. At the end, each is worth {points.rarity:g} times the "
            "number of players divided by the number of those who hold it: a secret that few hold is worth more."
        )
    if game.mode == "diversity":
        return f"{_points(points.distinct)} for every different secret you collect; the same one again earns nothing."
    return (
        f"{_points(points.each)} for every different secret you collect. One secret in the game is worth "
        f"{_points(points.target)} more, and no player knows which."
    )


def view(agent: Player, other: Player, messages: Sequence[Message]) -> list[dict[str, str]]:
    """The conversation from the agent's side: its own messages as assistant, the other's as user, with a name tag."""
    dialogue = [] if messages and messages[0].seat != agent.seat else [{"role": "user", "content": BEGIN}]
    for message in messages:
        if message.seat == agent.seat:
            dialogue.append({"role": "assistant", "content": message.text})
        else:
            dialogue.append({"role": "user", "content": f"{tag(other)} {message.text}"})
    return dialogue if "chat_history" in agent.spec.context else dialogue[-1:]


def remembered(agent: Player, other: Player, messages: Sequence[Message], round: int) -> str:
    """A conversation as an agent remembers it later."""
    names = {agent.seat: "You", other.seat: other.name}
    lines = [f"[{names[message.seat]}]: {message.text}" for message in messages if message.text]
    return "\n".join([f"Round {round + 1}, with {other.name}:", *lines])


def sat_out(round: int) -> str:
    return f"Round {round + 1}: you sat out, because the number of players is odd."


def tag(agent: Player) -> str:
    return f"[{agent.name}]:"


def cleaned(text: str, agent: Player, early_end: bool) -> tuple[str, bool]:
    """A reply without the writer's own name tag and without the marker; and whether it ends the conversation.

    Nobody hears what a model thought first, also where its server does not keep that apart.
    """
    text = text.rpartition("</think>")[2].strip()
    while text.startswith(tag(agent)):
        text = text.removeprefix(tag(agent)).lstrip()
    if early_end and text.endswith(END):
        return text.removesuffix(END).rstrip(), True
    return text, False


def _points(value: float) -> str:
    return f"{value:g} point" if value == 1 else f"{value:g} points"


def _count(left: int) -> str:
    return "1 more message" if left == 1 else f"{left} more messages"
