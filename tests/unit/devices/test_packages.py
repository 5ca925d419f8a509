import pytest

from edge_infer.devices.packages import installed_versions, torch_mismatches

NONE = dict.fromkeys(installed_versions(), None)


@pytest.mark.parametrize(
    ("installed", "wrong"),
    [
        ({}, []),
        ({"torchvision": "0.28.0"}, []),
        ({"torch": "2.13.0+cpu"}, []),
        ({"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"}, []),
        (
            {"torch": "2.13.0+cpu", "torchvision": "0.28.0", "torchaudio": "2.13.0"},
            ["torchvision", "torchaudio"],
        ),
        ({"torch": "2.13.0+cpu", "torchcodec": "0.9+cu130"}, ["torchcodec"]),
        ({"torch": "2.13.0", "torchvision": "0.28.0"}, []),
    ],
)
def test_companions_of_torch(installed: dict[str, str], wrong: list[str]) -> None:
    problems = torch_mismatches(NONE | installed)
    assert [text.split()[0] for text in problems] == wrong


def test_installed_versions() -> None:
    versions = installed_versions()
    assert versions["numpy"]
    assert versions["vllm-omni"] is None or versions["torch"]
