# weft on the CPU.
#   docker build -t weft .
#   docker run --rm -v "$PWD:/work" weft demo         leaves runs/demo in the folder
#   docker run --rm -v "$PWD:/work" --entrypoint mpirun weft -n 2 weft run digits
#   apptainer build weft.sif docker-daemon://weft:latest      for a cluster: docs/scaling.md
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
        gcc make libc6-dev zlib1g-dev libjansson-dev libxxhash-dev \
        pkg-config libcurl4-openssl-dev libopenmpi-dev openmpi-bin
COPY . /weft
WORKDIR /weft
RUN make NVCC= PREFIX=/usr DESTDIR=/installed install

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends \
        zlib1g libjansson4 libxxhash0 libcurl4 ca-certificates openmpi-bin && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /installed /
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
WORKDIR /work
ENTRYPOINT ["weft"]
CMD ["help"]
