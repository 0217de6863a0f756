"""One rank of the Gloo all-reduce (PyTorch) in `./run bench outer-step`: as many parameters, same network namespaces.

The report has one JSON object per round: CLOCK_MONOTONIC before and after in seconds, and the bytes of the network
interface."""

import argparse
import json
import time

import torch
import torch.distributed as dist


def counter(device, name):
    with open(f"/sys/class/net/{device}/statistics/{name}") as f:
        return int(f.read())


def main():
    parser = argparse.ArgumentParser()
    for name in ("rank", "world", "params", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("address", "device", "report"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=args.address, rank=args.rank, world_size=args.world)
    dist.all_reduce(torch.ones(1000))  # connects the ranks before the first measurement
    x = torch.randn(args.params) * 1e-3
    with open(args.report, "w") as out:
        for i in range(args.rounds):
            dist.barrier()
            sent, received, start = counter(args.device, "tx_bytes"), counter(args.device, "rx_bytes"), time.monotonic()
            dist.all_reduce(x)
            end = time.monotonic()
            print(json.dumps({"rank": args.rank, "round": i, "start": start, "end": end,
                              "bytes_up": counter(args.device, "tx_bytes") - sent,
                              "bytes_down": counter(args.device, "rx_bytes") - received}), file=out)
    dist.barrier()
    dist.destroy_process_group()


main()
