"""Damaged, missing and hostile files."""
import json
import os
import shutil
import signal
import subprocess
import time

import rig


def atoll(*args, seconds=30, **options):
    return subprocess.run([str(a) for a in (rig.BIN / "atoll", *args)], capture_output=True, text=True, timeout=seconds,
                          cwd=rig.WORK, **options)


def finished(name, rounds=12, **settings):
    run = rig.Run(name, workers=1, train__max_steps=rounds * 40, checkpoint__every=4, **settings)
    run.summary()
    run.end()
    return run


def stopped(name, rounds=10, **settings):
    """A run that kill -9 ended in the middle."""
    run = rig.Run(name, workers=1, train__max_steps=10**6, checkpoint__every=4, **settings)
    rig.until(30, "rounds", lambda: run.rounds() >= rounds)
    run.end()
    return run


def flip(path, at=None):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)


def last_line(done):
    return (done.stderr.strip() or done.stdout.strip() or "-").splitlines()[-1]


def damaged_export():
    run = finished("export")
    flip(run.dir / "checkpoints" / "latest" / "model.safetensors", -5)
    for args in (("export", run.dir / "checkpoints" / "latest", "out"), ("generate", run.dir, "--tokens", "4")):
        done = atoll(*args)
        assert done.returncode == 1, f"{args[0]}: exit code {done.returncode}"
        assert "model.safetensors" in done.stderr, done.stderr
    assert not (rig.WORK / "out").exists(), "export left a folder"
    return last_line(done)[:120]


def latest_is_a_link():
    run = finished("latest")
    latest = run.dir / "checkpoints" / "latest"
    assert latest.is_symlink() and (latest / "config.json").exists(), "latest is no link to a folder"
    return f"latest -> {os.readlink(latest)}"


def damaged_checkpoint():
    run = stopped("ckpt")
    newest = sorted((run.dir / "checkpoints").glob("round_*"))[-1]
    flip(newest / "model.safetensors", -5)
    before = run.rounds()
    run.coordinator = run.start_coordinator()
    run.start_worker("h0")
    rig.until(30, "rounds after the restart", lambda: run.rounds() > before + 2)
    run.end()
    lines = [text for text in run.log().splitlines() if newest.name in text]
    assert lines, "no line names the damaged checkpoint"
    return lines[-1][:120]


def damaged_journal():
    run = stopped("journal", rounds=14)
    segments = sorted((run.dir / "journal").iterdir())
    flip(segments[-1], segments[-1].stat().st_size // 3)
    run.coordinator = run.start_coordinator()
    rig.until(20, "refusal", lambda: run.coordinator.poll() is not None)
    assert "atoll repair" in run.log(), run.log()[-300:]
    done = atoll("repair", run.dir)
    assert done.returncode == 0, done.stderr
    before = run.rounds()
    run.coordinator = run.start_coordinator()
    run.start_worker("h0")
    rig.until(30, "rounds after the repair", lambda: run.rounds() > before + 2)
    run.end()
    return last_line(done)[:140]


def pipe():
    run = stopped("pipe")
    (run.dir / "metrics.jsonl").unlink()
    os.mkfifo(run.dir / "metrics.jsonl")
    process = run.start_coordinator()
    rig.until(10, "refusal of a pipe", lambda: process.poll() is not None)
    assert process.returncode in (1, 2), f"exit code {process.returncode}"
    return run.log().splitlines()[-1][:120]


def links():
    """Files that another user prepared as links: what they point to stays as it is."""
    victim = rig.WORK / "victim"
    victim.write_text("precious")
    run = rig.WORK / "links"
    run.mkdir()
    for name in ("address.tmp", "config.yaml.tmp", "run_id.tmp", "keys.tmp", "summary.json.tmp"):
        (run / name).symlink_to(victim)
    finished("links")
    assert victim.read_text() == "precious", "a temporary file followed a link"
    open_files = [f.name for f in run.iterdir() if f.name in ("keys", "address", "workers") and f.stat().st_mode & 0o77]
    assert not open_files, f"readable by others: {open_files}"


def truncated_shard():
    shutil.copytree(rig.WORK / "data", rig.WORK / "shards")
    run = rig.Run("shard", workers=0, data__train=f"{rig.WORK}/shards/train_*.bin")
    process = rig.spawn("shard.log", rig.BIN / "atoll-worker", "--join", run.dir, "--dir", "shard.worker", "--name", "w",
                        f"--data.train={rig.WORK}/shards/train_*.bin", f"--data.val={rig.WORK}/shards/val_*.bin")
    run.await_rounds(5)
    os.truncate(next((rig.WORK / "shards").glob("train_*.bin")), 3000)
    rig.until(20, "end of the worker", lambda: process.poll() is not None)
    text = rig.text_of("shard.log").splitlines()[-1]
    run.end()
    assert process.returncode == 1, f"the worker ended with {process.returncode}: {text}"
    assert "train_" in text, text
    return text[:140]


def removed_folder():
    run = rig.Run("removed", workers=1)
    run.await_rounds(5)
    shutil.rmtree(run.dir, ignore_errors=True)
    shutil.rmtree(run.dir, ignore_errors=True)
    rig.until(20, "end of the coordinator", lambda: run.coordinator.poll() is not None)
    text = run.log().splitlines()[-1]
    run.end()
    assert not (run.dir / "journal").exists(), "the run began anew"
    return text[:120]


def prepare_again():
    done = atoll("prepare", "data", "text.txt")
    assert done.returncode in (1, 2) and "--force" in done.stderr, f"exit {done.returncode}: {done.stderr}"
    folder = rig.WORK / "mixed"
    folder.mkdir()
    (folder / "a.jsonl").write_text(json.dumps({"text": "hello " * 2000}) + "\n")
    for name in ("b.jsonl.gz", "c.parquet"):
        (folder / name).write_bytes(b"x")
    done = atoll("prepare", "mixed-out", folder)
    assert done.returncode == 0 and "b.jsonl.gz" in done.stdout + done.stderr and "c.parquet" in done.stdout + done.stderr
    return "left out: b.jsonl.gz, c.parquet"


def address_goes():
    run = rig.Run("gone", workers=1)
    run.await_rounds(2)
    run.coordinator.send_signal(signal.SIGTERM)
    rig.until(10, "end of the coordinator", lambda: run.coordinator.poll() is not None)
    run.end()
    assert not (run.dir / "address").exists(), "the address is still there"


def go():
    for name, function in {
        "export and generate of damage": damaged_export,
        "checkpoints/latest": latest_is_a_link,
        "damaged newest checkpoint": damaged_checkpoint,
        "damaged journal, repair": damaged_journal,
        "metrics.jsonl is a pipe": pipe,
        "temporary files are links": links,
        "shard truncated under a worker": truncated_shard,
        "rm -rf of a live run folder": removed_folder,
        "prepare over a folder": prepare_again,
        "address after the end": address_goes,
    }.items():
        rig.check("files", name, function)
