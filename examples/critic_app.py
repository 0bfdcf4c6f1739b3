"""A page that answers questions and learns from thumbs: `python examples/critic_app.py [PORT] [MODEL] [FILE]`."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fanfold.errors import FanfoldError
from fanfold.studies.critic import Critic

PROMPTS = ["Answer with numbered steps.", "Be warm and friendly.", "Answer in one short sentence."]
PAGE = """<!doctype html><meta charset="utf-8"><title>Ask</title><style>body{font:18px sans-serif;margin:3em}</style>
<form id="form"><input id="query" size="60" placeholder="Ask something" autofocus> <button>Ask</button></form>
<p id="text" style="white-space:pre-wrap"></p><p id="thumbs" hidden><button value="1">&#128077;</button>
<button value="">&#128078;</button> <span id="thanks"></span></p><script>
const at = id => document.getElementById(id), post = async (path, body) => (await fetch(path, {method: "POST",
  headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)})).json();
let id;
at("form").onsubmit = async event => {
  event.preventDefault(); at("thumbs").hidden = true; at("thanks").textContent = ""; at("text").textContent = "...";
  const shown = await post("/ask", {query: at("query").value});
  id = shown.id; at("text").textContent = shown.text || shown.error; at("thumbs").hidden = !id;
};
for (const button of document.querySelectorAll("#thumbs button")) button.onclick = async () => {
  const told = await post("/tell", {id: id, thumbs: Boolean(button.value)});
  at("thanks").textContent = told.error || "Thank you";
};
</script>"""


class Handler(BaseHTTPRequestHandler):
    critic: Critic

    def do_GET(self) -> None:
        self.reply(200, "text/html", PAGE)

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), 10_000)))
            if self.path == "/tell":
                self.critic.tell_sync(body["id"], thumbs=body["thumbs"])
                return self.reply(200, "application/json", "{}")
            shown = self.critic.ask_sync(body["query"])
            self.reply(200, "application/json", json.dumps({"id": shown.id, "text": shown.text}))
        except (FanfoldError, ValueError, KeyError, TypeError) as error:
            self.reply(400, "application/json", json.dumps({"error": str(error)}))

    def reply(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    port, model, file = [*sys.argv[1:], *["8000", "simulated/critic", "app.db"][len(sys.argv) - 1 :]]
    Handler.critic = Critic.open(file, model=model, prompts=PROMPTS)
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    print(f"ready at http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
