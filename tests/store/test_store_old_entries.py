"""Entries that 0.1 wrote still open: a whole file as it was then, at its address."""

import torch

from coset.store import Store

CONFIG = {"kind": "mlp", "seed": 0}
ADDRESS = "65d3ec1829ea68afec667913fdc0a3de10fc7167ca68a7b5c14d9355ec1ac663"
FILE = (
    b'x\x01\x00\x00\x00\x00\x00\x00{"__metadata__":{"coset.config":"{\\"kind\\":\\"mlp\\",\\"seed\\":0}",'
    b'"coset.created":"2026-11-19T22:58:44.694127+00:00",'
    b'"coset.digest":"1d91d5628dd69241b757131fdf341e62c7174599d53711b087c2caefcf2e491e",'
    b'"coset.info":"{\\"loss\\":0.5}","coset.names":"{\\"w\\": \\"w\\", \\"tied\\": \\"w\\"}","coset.schema":"1",'
    b'"coset.version":"0.1.0"},"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}  '
    b"\x00\x00\x80?\x00\x00\x00@"
)


def test_an_entry_of_the_first_schema_opens(tmp_path):
    store = Store(tmp_path)
    path = tmp_path / ADDRESS[:2] / f"{ADDRESS}.safetensors"
    path.parent.mkdir()
    path.write_bytes(FILE)
    assert store.path(CONFIG) == path
    entry = store.get(CONFIG)
    assert entry is not None
    assert (entry.config, entry.info, entry.version, entry.cost) == (CONFIG, {"loss": 0.5}, "0.1.0", None)
    assert list(entry.params) == ["w", "tied"]
    assert torch.equal(entry.params["w"], torch.tensor([[1.0, 2.0]]))
    assert entry.params["tied"] is entry.params["w"]
    assert entry.created.isoformat() == "2026-11-19T22:58:44.694127+00:00"
