# The image of Tenure: one static binary, nothing else. `docker compose up --build` uses it.
#
#   docker build --tag tenure .
#   buildah build --format docker --tag tenure .
#
# `cargo xtask dist` builds the same image from a binary that it has already built
# (deploy/Dockerfile.binary).
FROM docker.io/library/rust:1.95-alpine AS build
RUN apk add --no-cache build-base cmake linux-headers perl protoc
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package tenure-cli \
    && strip --strip-all target/release/tenure \
    && mkdir -p /image/system/usr/bin /image/system/tmp /image/owned/data \
    && cp target/release/tenure /image/system/usr/bin/tenure \
    && chmod 1777 /image/system/tmp

FROM scratch
COPY --from=build /image/system /
# COPY makes root the owner, whatever the owner was.
COPY --from=build --chown=65532:65532 /image/owned /
LABEL org.opencontainers.image.title="tenure" \
      org.opencontainers.image.description="One lock for everything that is shared" \
      org.opencontainers.image.licenses="Apache-2.0 OR MIT"
# Ports listen on all addresses of the container. The daemon refuses to start without credentials for
# its clients, or TENURE_ALLOW_ANONYMOUS=true.
ENV PATH=/usr/bin \
    TENURE_DATA_DIR=/data \
    TENURE_LISTEN=0.0.0.0:50051 \
    TENURE_WEB_LISTEN=0.0.0.0:8443 \
    TENURE_H3_LISTEN=0.0.0.0:8443
USER 65532:65532
VOLUME /data
EXPOSE 50051/tcp 8443/tcp 8443/udp 50052/tcp 7946/udp
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["tenure", "--health-check"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tenure"]
CMD ["serve"]
