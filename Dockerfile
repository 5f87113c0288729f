# The command `opabinia` in an image (docs/install.md):
#
#     docker build --tag opabinia .
#     docker build --tag opabinia:cuda --build-arg DEVICE=cuda .
#
# DEVICE    cpu, or cuda: PyTorch with its CUDA libraries
# EXTRAS    extras of the package, separated by commas
# PACKAGES  Debian packages; torch.compile needs g++
# PYTHON    version of Python

ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG DEVICE=cpu
ARG EXTRAS=export,serve
WORKDIR /build
RUN python -m venv /opt/opabinia
# PyTorch has a layer of its own: a change of the code does not download it again. uv knows the index of the CPU builds.
COPY constraints.txt ./
RUN python -m pip install --no-cache-dir --constraint constraints.txt uv \
    && case "$DEVICE" in \
        cpu) export UV_TORCH_BACKEND=cpu ;; \
        cuda) ;; \
        *) echo "DEVICE is cpu or cuda" >&2; exit 1 ;; \
    esac \
    && uv pip install --no-cache --python /opt/opabinia --constraint constraints.txt torch torchvision
COPY LICENSE README.md pyproject.toml ./
COPY opabinia opabinia
RUN /opt/opabinia/bin/pip install --no-cache-dir --constraint constraints.txt ".${EXTRAS:+[$EXTRAS]}"

FROM python:${PYTHON}-slim
ARG PACKAGES=
# hadolint ignore=DL3008
RUN if [ -n "$PACKAGES" ]; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends $PACKAGES \
        && rm -rf /var/lib/apt/lists/*; \
    fi
# Files are read and written in /workspace, downloaded weights are kept in /cache: both can be volumes of any user.
RUN useradd --uid 1000 opabinia \
    && install --directory --mode 1777 /workspace /cache
COPY --from=build /opt/opabinia /opt/opabinia
# PyTorch asks for a user name, which `docker run --user` may not have.
ENV PATH=/opt/opabinia/bin:$PATH USER=opabinia HOME=/cache XDG_CACHE_HOME=/cache
WORKDIR /workspace
USER 1000
ENTRYPOINT ["opabinia"]
CMD ["--help"]
