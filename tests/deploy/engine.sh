# buildah and podman with storage and networks of their own below $WORK: source after tests/e2e/lib.sh, in the namespaces of
# roots.sh.
# shellcheck shell=bash

# engine_start: sets the environment of buildah and podman. podman also runs where raising limits is not allowed.
engine_start() {
    mkdir engine
    cat >engine/storage.conf <<END
[storage]
driver = "overlay"
graphroot = "$WORK/engine/storage"
runroot = "$WORK/engine/run"
END
    cat >engine/containers.conf <<END
[containers]
cgroups = "disabled"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "crun"
tmp_dir = "$WORK/engine/tmp"
[engine.runtimes]
crun = ["$WORK/engine/crun"]
[network]
network_backend = "netavark"
network_config_dir = "$WORK/engine/networks"
END
    echo '{"default": [{"type": "insecureAcceptAnything"}]}' >engine/policy.json
    cat >engine/crun <<'END'
#!/usr/bin/env bash
# crun without the limits of the configuration, which it may not raise on some machines
bundle='' last=''
for word; do
    case $last in -b | --bundle) bundle=$word ;; esac
    last=$word
done
[[ ! $bundle ]] || python3 -c '
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    config = json.load(file)
config["process"].pop("rlimits", None)
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(config, file)' "$bundle/config.json"
exec /usr/bin/crun "$@"
END
    chmod +x engine/crun
    export CONTAINERS_STORAGE_CONF=$WORK/engine/storage.conf CONTAINERS_CONF=$WORK/engine/containers.conf BUILDAH_ISOLATION=chroot
    # podman's container runtime wants the second version of control groups alone
    umount -R /sys/fs/cgroup 2>/dev/null || true
    mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null || true
}

image_of_root() { # FOLDER NAME: an image of a Debian root
    local container mounted
    container=$(buildah from scratch)
    mounted=$(buildah mount "$container")
    tar -C "$1" -cf - . | tar -C "$mounted" -xf -
    buildah umount "$container" >/dev/null
    buildah commit -q --rm "$container" "$2" >/dev/null
}

kilobytes() { # IMAGE: the size of its layers
    buildah images --format '{{.Size}}' "$1" | awk '{ print int($1 * ($2 == "GB" ? 1e6 : $2 == "MB" ? 1e3 : 1)) }'
}

# of_image IMAGE FIELD: a list of the image's configuration, one word a line: Entrypoint, Cmd, Env
of_image() {
    buildah inspect --type image "$1" | python3 -c '
import json, sys
print("\n".join(json.load(sys.stdin)["Docker"]["config"].get(sys.argv[1]) or []))' "$2"
}
