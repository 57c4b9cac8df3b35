#!/usr/bin/env python3
"""Networks of 64-16-8-10 trained a second in eager PyTorch: 1,600 examples, 25 epochs, batch 128,
Adam 1e-3, one network
at a time, one process a core.   torch_zoo.py SECONDS THREADS"""
import json, sys, time
from multiprocessing import Process, Queue


def train_one(torch, x, y, seed):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8), torch.nn.ReLU(),
        torch.nn.Linear(8, 10),
    )
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(25):
        for batch in torch.randperm(len(x)).split(128):
            loss = torch.nn.functional.cross_entropy(net(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def work(seconds, first, queue):
    import torch
    torch.set_num_threads(1)
    x, y = torch.randn(1600, 64), torch.randint(10, (1600,))
    train_one(torch, x, y, first)
    count, begin = 0, time.perf_counter()
    while count < 2 or time.perf_counter() - begin < seconds:
        train_one(torch, x, y, first + 1 + count)
        count += 1
    queue.put(count / (time.perf_counter() - begin))


seconds, threads = float(sys.argv[1]), int(sys.argv[2])
queue = Queue()
processes = [Process(target=work, args=(seconds, 10**6 * i, queue)) for i in range(threads)]
for process in processes:
    process.start()
rate = sum(queue.get() for _ in processes)
for process in processes:
    process.join()
print(
    json.dumps(
        {
            "name": "zoo", "value": rate, "unit": "networks/s",
            "note": f"one at a time, {threads} processes",
        }
    )
)
