"""Short names of real boards, as NVML and AMD SMI spell them."""

from __future__ import annotations

import pytest

from corral.devices.models import SIMULATED_MEMORY_MIB, short_model


@pytest.mark.parametrize(
    "name,memory_mib,short",
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100"),
        ("NVIDIA H100 PCIe", 81559, "H100"),
        ("NVIDIA H100 NVL", 95830, "H100"),
        ("NVIDIA H200", 143771, "H200"),
        ("NVIDIA H20", 97871, "H20"),
        ("NVIDIA H800", 81559, "H800"),
        ("NVIDIA GH200 480GB", 97871, "GH200"),
        ("NVIDIA GB200", 189471, "GB200"),
        ("NVIDIA GB10", 122570, "GB10"),
        ("NVIDIA B200", 183359, "B200"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100"),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-80GB"),
        ("A100-PCIE-40GB", 40536, "A100"),
        ("NVIDIA A800-SXM4-80GB", 81251, "A800"),
        ("NVIDIA A10", 23028, "A10"),
        ("NVIDIA A10G", 23028, "A10G"),
        ("NVIDIA A30", 24576, "A30"),
        ("NVIDIA A40", 46068, "A40"),
        ("NVIDIA L4", 23034, "L4"),
        ("NVIDIA L40", 46068, "L40"),
        ("NVIDIA L40S", 46068, "L40S"),
        ("Tesla T4", 15360, "T4"),
        ("Tesla V100-SXM2-16GB", 16160, "V100"),
        ("Tesla V100-SXM2-32GB", 32510, "V100-32GB"),
        ("Tesla P100-PCIE-16GB", 16280, "P100"),
        ("Tesla K80", 11441, "K80"),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX4090"),
        ("NVIDIA GeForce RTX 3080 Ti", 12288, "RTX3080Ti"),
        ("NVIDIA GeForce GTX 1080 Ti", 11178, "GTX1080Ti"),
        ("NVIDIA RTX A6000", 49140, "RTXA6000"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX6000-Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "RTXPRO6000"),
        ("Quadro RTX 6000", 24220, "RTX6000"),
        ("AMD Instinct MI300X", 196592, "MI300X"),
        ("AMD Instinct MI300X OAM", 196592, "MI300X"),
        ("AMD INSTINCT MI250X (MCM) OAM AC MBA", 65520, "MI250X"),
        ("Instinct MI210", 65520, "MI210"),
        ("AMD Radeon RX 7900 XTX", 24560, "RX7900XTX"),
        ("NVIDIA Novelty X9 24GB PCIe", 24576, "Novelty-X9"),
        ("", None, "unknown"),
        ("NVIDIA Graphics", None, "unknown"),
    ],
)
def test_boards_have_the_names_that_the_field_uses(name: str, memory_mib: int | None, short: str) -> None:
    assert short_model(name, memory_mib) == short


def test_without_its_memory_a_board_has_the_name_alone() -> None:
    assert short_model("NVIDIA A100-SXM4-80GB") == "A100"


@pytest.mark.parametrize("model", sorted(SIMULATED_MEMORY_MIB))
def test_every_model_that_can_be_simulated_is_named_as_a_real_board_would_be(model: str) -> None:
    assert short_model(model, SIMULATED_MEMORY_MIB[model]) == model
