"""The replayed population is the simulator's, only faster or thinner."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tidegate.loadtest.content import blocks, files_of, main, write
from tidegate.loadtest.workloads import File, address_of, make_workload, scaled


def test_time_scale_shrinks_every_duration_alike() -> None:
    plain = make_workload("release-artefacts-abandon", 3)
    fast = scaled(plain, time_scale=10.0)
    assert len(fast.visitors) == len(plain.visitors)
    for slow, quick in zip(plain.visitors, fast.visitors, strict=True):
        assert quick.arrival_s == pytest.approx(slow.arrival_s / 10)
        assert quick.rate_bytes_s == pytest.approx(slow.rate_bytes_s * 10)
        assert quick.patience_s == pytest.approx(slow.patience_s / 10)
        assert quick.files == slow.files
    assert fast.bandwidth_bytes_s == pytest.approx(plain.bandwidth_bytes_s * 10)


@pytest.mark.parametrize("thin", [1.0, 2.0, 3.5, 10.0])
def test_thinning_keeps_one_visitor_in_so_many_and_the_span(thin: float) -> None:
    plain = make_workload("exp2", 3)
    few = scaled(plain, time_scale=1.0, thin=thin)
    assert len(few.visitors) == pytest.approx(len(plain.visitors) / thin, abs=1)
    assert few.visitors[-1].arrival_s > 0.9 * plain.visitors[-1].arrival_s
    assert few.bandwidth_bytes_s == pytest.approx(plain.bandwidth_bytes_s / thin)


def test_content_is_the_same_everywhere_and_of_the_right_size() -> None:
    file = File("1M", 1_000_000)
    digest = hashlib.sha256(b"".join(blocks(file))).hexdigest()
    assert digest == hashlib.sha256(b"".join(blocks(file))).hexdigest()
    assert sum(len(block) for block in blocks(file)) == file.size_bytes
    assert b"".join(blocks(File("1K-a", 1000))) != b"".join(blocks(File("1K-b", 1000)))


def test_a_workload_is_laid_out_once_and_kept(tmp_path: Path) -> None:
    workload = make_workload("exp2", 1)
    files = write(workload, tmp_path)
    assert files == files_of(workload)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        file.name: file.size_bytes for file in files
    }
    before = (tmp_path / "1M").stat().st_mtime_ns
    write(workload, tmp_path)
    assert (tmp_path / "1M").stat().st_mtime_ns == before


def test_a_workload_without_a_release_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release-pareto", str(tmp_path / "out")]) == 1
    assert "cannot be laid out" in capsys.readouterr().err
    assert main(["nonsense", str(tmp_path)]) == 2


def test_clients_of_a_load_test_have_addresses_and_networks_of_their_own() -> None:
    """Of one /24 they would share its part of the slots, unlike the simulator's."""
    crowd = [address_of(number) for number in range(5_000)]
    assert len({address.rpartition(".")[0] for address in crowd}) == len(crowd)
    assert len({address_of(number << 12) for number in range(1 << 12)}) == 1 << 12
