"""The table and the picture of ``cpu.py``."""


def print_table(results):
    print(f"\n{results['machine']['cpu']}, {results['threads']} threads" + ", QUICK" * results["quick"])
    _throughput(results)
    _line("\nseconds to 1.05 x the noise on held-out entries of a planted tensor", results["target"], _target)
    _line("\nreal ratings: seconds of the shortest whole fit to a test RMSE", results["ratings"], _rating)
    _line("\npeak resident set of a process with one pass in it", results["memory"], _memory)
    _line("\ngrowth of an exact sweep", results["scaling"], _growth)
    if results["end_to_end"]:
        _line("\nwhole fits, uber_apr_jun, 4/16, seed 0", results["end_to_end"], _whole)


def _throughput(results):
    rows = results["throughput"] | {"JULIA 4/16 by hand": results["paper"]}
    print(f"\n{'M entries/s':20} {'ours':>8} {'rival':>8} {'ratio':>8}   quartiles       cores (ours, rival)")
    for name, found in rows.items():
        if "reason" in found:
            print(f"{name:20} {found['reason']}")
            continue
        ours, rival = found["ours"], found["rival"]
        low, high = found["quartiles"]
        print(
            f"{name:20} {ours['entries_per_second'] / 1e6:8.3f} {rival['entries_per_second'] / 1e6:8.3f} "
            f"{found['ratio']:8.2f}   {low:.2f} - {high:.2f}   {ours['cores']:.2f}, {rival['cores']:.2f}"
        )


def _line(title, rows, words):
    print(title)
    for name, found in rows.items():
        print(f"{name:20} {found['reason'] if 'reason' in found else words(found)}")


def _target(found):
    if found["seconds"] is None:
        return f"not reached in {found['budget']:g} s; RMSE {min(found['rmse']):.4f}, wanted {found['target']:.4f}"
    return f"{found['seconds']:.3f} s" + ("" if found["rate"] is None else f", learning rate {found['rate']:g}")


def _rating(found):
    reached = [
        f"{target}: {'not reached' if seconds is None else f'{seconds:.2f} s'}"
        for target, seconds in found["seconds_to"].items()
    ]
    return f"{'   '.join(reached)}   best {found['best_rmse']:.4f}"


def _memory(found):
    return f"{found['peak_mib']:.0f} MiB, {found['before_mib']:.0f} of them before; {found['entries']:,} entries"


def _growth(found):
    times = ", ".join(f"{of:,}: {seconds:.3f} s" for of, seconds in zip(found["of"], found["seconds"], strict=True))
    return f"exponent {found['exponent']:.3f}, of the last step {found['last_exponent']:.3f} ({times})"


def _whole(found):
    return f"{found['seconds']:.0f} s, test RMSE {found['rmse']:.4f}, {found['outcome']}"


def draw(results, path):
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (bars, lines) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    found = {name: one for name, one in results["throughput"].items() if "ratio" in one}
    places = range(len(found))
    bars.barh(
        [p + 0.2 for p in places], [f["ours"]["entries_per_second"] for f in found.values()], 0.4, label="exact sweep"
    )
    bars.barh([p - 0.2 for p in places], [f["rival"]["entries_per_second"] for f in found.values()], 0.4, label="rival")
    bars.set(xscale="log", xlabel="entries per second, same entries", yticks=list(places), yticklabels=list(found))
    bars.legend()
    for name, one in results["scaling"].items():
        if "seconds" in one:
            grown = [of / one["of"][0] for of in one["of"]]
            taken = [seconds / one["seconds"][0] for seconds in one["seconds"]]
            lines.loglog(grown, taken, "o-", label=f"{name}: exponent {one['exponent']:.2f}")
    lines.set(xlabel="growth", ylabel="growth of an exact sweep's time")
    lines.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
