# weft on the CPU.
#   docker build -t weft .
#   docker run --rm -v "$PWD:/work" weft demo         leaves runs/demo in the folder
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
        gcc make libc6-dev zlib1g-dev libjansson-dev libxxhash-dev \
        pkg-config libcurl4-openssl-dev
COPY . /weft
WORKDIR /weft
RUN make NVCC= PREFIX=/usr DESTDIR=/installed install

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends \
        zlib1g libjansson4 libxxhash0 libcurl4 ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build /installed /
WORKDIR /work
ENTRYPOINT ["weft"]
CMD ["help"]
