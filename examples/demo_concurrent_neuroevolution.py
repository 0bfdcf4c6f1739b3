"""One network after another against several at a time, measured: the demo of the document, with real trainings.

The same population is trained in both modes, each network by one thread, and must come out the same.
"""

import argparse
import time

try:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from fanfold.legacy.neuroevolution import CONFIG, HybridNeuroevolution
    from fanfold.studies.neuro.data import Images, load
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install 'fanfold[neuro]'") from None


def loader(images: Images) -> DataLoader:
    return DataLoader(TensorDataset(torch.tensor(images.pixels), torch.tensor(images.labels)), batch_size=256)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--dataset", default="digits", help="digits or mnist-5000")
    options.add_argument("--models", type=int, default=2, help="models trained at a time")
    options.add_argument("--population", type=int, default=6)
    options.add_argument("--epochs", type=int, default=4)
    given = options.parse_args()

    data = load(given.dataset)
    config = {
        **CONFIG,
        "concurrent_models": given.models,
        "max_concurrent_models": max(given.models, CONFIG["max_concurrent_models"]),
        "population_size": given.population,
        "num_epochs": given.epochs,
        "epoch_patience": given.epochs,
        "batch_size": 64,
        "max_conv_layers": 2,
        "min_filters": 16,
        "max_filters": 32,
        "max_fc_layers": 1,
        "max_fc_nodes": 128,
    }
    evolution = HybridNeuroevolution(config, loader(data.train), loader(data.test), say=lambda line: None)
    evolution.evaluate_population()  # so that neither of the two is the first to load everything

    began = time.perf_counter()
    one_by_one = evolution._evaluate_population_sequential()
    sequential = time.perf_counter() - began
    began = time.perf_counter()
    at_once = evolution._evaluate_population_concurrent()
    concurrent = time.perf_counter() - began
    speedup = sequential / concurrent

    print(f"Sequential time:   {sequential:.2f} seconds")
    print(f"Concurrent time:   {concurrent:.2f} seconds")
    print(f"Speedup achieved:  {speedup:.2f}x")
    print(f"Efficiency:        {speedup / evolution.config['concurrent_models']:.0%}")
    print(f"Same fitness:      {'yes, to the last bit' if one_by_one == at_once else 'no'}")


if __name__ == "__main__":
    main()
