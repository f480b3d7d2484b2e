"""The library itself; use it through the package shardwire."""

from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence
)
from typing import Any

import shardwire._report
import shardwire._types


class Layout:
    """
    A rule or list giving the boxes of a tensor that each rank holds, and the place of each in the rank's local buffer. Immutable; serves tensors of many shapes.
    """

    @staticmethod
    def replicated() -> Layout:
        """Every rank holds the whole tensor."""

    @staticmethod
    def chunk(dim: int, ranks: int) -> Layout:
        """torch.chunk of `dim` over `ranks` ranks; tail ranks may hold nothing."""

    @staticmethod
    def mesh(shape: Sequence[int], placements: Sequence[shardwire._types.Placement], order: shardwire._types.MeshOrder = 'mesh', ranks: Sequence[int] = ()) -> Layout:
        """
        Placements over an n-d mesh of ranks, with the meaning of PyTorch's DTensor. `ranks` lists the rank at each mesh position, row-major. `order` 'tp_first' is how FSDP2 over TP lays data out.
        """

    @staticmethod
    def boxes(boxes: Mapping[int, Sequence[shardwire._types.Box]] | Mapping[int, Sequence[shardwire._types.PlacedBox]]) -> Layout:
        """
        Explicit boxes by rank. A rank's boxes lie back to back in its local buffer, or where their places say.
        """

    @staticmethod
    def block_cyclic(block: Sequence[int], grid: Sequence[int], source: Sequence[int] = []) -> Layout:
        """Blocks dealt out in turn over a grid of ranks, as ScaLAPACK does."""

    @staticmethod
    def within(outer: Layout, outer_ranks: int, inner: Layout) -> Layout:
        """
        Splits the local array that `outer` gives to each of its ranks by `inner`. Rank = inner rank * outer_ranks + outer rank.
        """

    @staticmethod
    def flat(members: Sequence[shardwire._types.FlatMember], world: int, align: int = 0, outer_ranks: int = 1) -> list[Layout]:
        """FSDP1 flat parameter: one layout for each member, in order."""

    @staticmethod
    def on_ranks(layout: Layout, ranks: Sequence[int]) -> Layout:
        """
        Gives the boxes of the layout's ranks 0..n-1 to these ranks; others hold nothing.
        """

    @staticmethod
    def packed(layout: Layout) -> Layout:
        """The boxes of `layout` back to back in a buffer of their own."""

    @property
    def kind(self) -> str: ...

    def check(self, shape: Sequence[int], ranks: int) -> None:
        """
        Raises LayoutMismatch if the layout cannot hold a tensor of this shape on `ranks` ranks.
        """

    def boxes_of(self, shape: Sequence[int], rank: int) -> list[shardwire._types.PlacedBox]:
        """Boxes that `rank` holds, in local order."""

    def local_elements(self, shape: Sequence[int], rank: int) -> int:
        """Length of the rank's local buffer, padding included."""

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class View:
    """
    Memory of one tensor: an address, or an object with DLPack or the buffer protocol, which then stays alive with the view. Strides, elements and offset count elements.
    """

    def __init__(self, data: Any, *, dtype: shardwire._types.DTypeLike | None = None, strides: Sequence[int] = (), elements: int | None = None, nbytes: int | None = None, offset: int = 0, device: int | None = None, ready_event: int = 0, read_only: bool = False, owner: object = None) -> None: ...

    @property
    def address(self) -> int: ...

class Arena:
    """
    Memory that peers can reach without a copy in between. Has the buffer protocol if it is host memory.
    """

    @property
    def address(self) -> int: ...

    def __len__(self) -> int: ...

    def discard(self, offset: int, nbytes: int) -> int:
        """
        Returns memory to the system; the number of bytes freed. The caller must not access them again.
        """

class Registration:
    """
    Memory of the caller that peers can read directly. Retire publications of it first.
    """

    def __len__(self) -> int: ...

    def close(self) -> None: ...

    def __enter__(self) -> Registration: ...

    def __exit__(self, *exception: object) -> None: ...

class Catalog:
    """
    The tensors, with layout and local memory, and the values that one rank holds or wants. Keeps the objects that own the memory alive. Add the same tensors in the same order on all ranks.
    """

    def __init__(self, rank: int, ranks: int) -> None: ...

    def add(self, fqn: str, state: str, dtype: shardwire._types.DTypeLike, shape: Sequence[int], layout: Layout, buffer: Any = None, *, absent: shardwire._types.Absent = 'error') -> None:
        """
        Adds a tensor of this global shape. `buffer` is this rank's local memory: a View, an object with DLPack or the buffer protocol, or None for a rank that holds no element. For a type that numpy lacks, such as bf16, it may be an array of unsigned integers of the same size.
        """

    def add_address(self, fqn: str, state: str, dtype: shardwire._types.DTypeLike, shape: Sequence[int], layout: Layout, address: int, strides: Sequence[int], elements: int, owner: object, device: int = -1, ready_event: int = 0, absent: shardwire._types.Absent = 'error') -> None:
        """
        As add(), for a known address: the fast way for many tensors with one owner. Strides in elements; empty: dense.
        """

    def add_value(self, fqn: str, state: str, value: shardwire._types.Value = None, *, absent: shardwire._types.Absent = 'error', agree: shardwire._types.Agree = 'authoritative') -> None:
        """
        Adds a value; on the wanting side, requests it. Use an empty fqn for values of the whole job.
        """

    def add_values(self, fqns: Sequence[str], state: str, value: shardwire._types.Value) -> None:
        """
        As add_value() with one value for each name: the fast way for options that many parameters share.
        """

    def set_value(self, fqn: str, state: str, value: shardwire._types.Value) -> None:
        """Replaces a value."""

    def set_values(self, fqns: Sequence[str], state: str, value: shardwire._types.Value) -> None:
        """As set_value() with one value for each name."""

    def add_param_groups(self, groups: Iterable[shardwire._types.ParamGroup], *, absent: shardwire._types.Absent = 'error') -> None:
        """
        Adds the options of each group as values (fqn, 'param_group/<option>') of each of its parameters.
        """

    def alias(self, alias: str, fqn: str) -> None:
        """Declares a second name of a parameter, with all its states and values."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    def tensors(self) -> dict[shardwire._types.TensorKey, shardwire._types.TensorInfo]: ...

    def values(self) -> dict[shardwire._types.TensorKey, shardwire._types.Value]: ...

    def copy(self) -> Catalog:
        """An independent catalog of the same memory. Cheap."""

    def to_case(self) -> str:
        """
        As Inventory.to_case(), with these layouts on both sides. Lacks what other ranks alone have: Session.gather_layouts() and Inventory.to_case() have it.
        """

class JobLayout:
    """
    The layouts of all tensors on all ranks of one side of a plan. Immutable.
    """

    def __init__(self, catalogs: Sequence[Catalog]) -> None:
        """
        From the catalogs of all ranks; memory is not needed. Further catalogs of a rank are further holders of the same.
        """

    def without(self, lost: Sequence[int]) -> JobLayout:
        """The same without what these holders hold."""

    @property
    def ranks(self) -> int: ...

    @property
    def copies(self) -> list[int]:
        """
        The ranks of further holders: plans name holder `ranks` + i, which holds what rank `copies[i]` holds.
        """

def plan(held: JobLayout, wanted: JobLayout, rank: int) -> shardwire._types.Plan:
    """
    What `rank` needs and who holds it: every wanted element exactly once, or a gap.
    """

def totals(held: JobLayout, wanted: JobLayout) -> shardwire._types.Totals:
    """Sums over the plans of all ranks."""

class Retirement:
    """A publication that is being retired. Awaitable."""

    def poll(self) -> bool:
        """True once wait() would not block."""

    def wait_for(self, timeout: shardwire._types.Seconds) -> bool:
        """
        As wait(), for at most `timeout`. False if the operation is still running then.
        """

    def fileno(self) -> int:
        """
        A descriptor that is readable once wait() would not block, for event loops. Do not read or close it.
        """

    def wait(self) -> None:
        """Returns when no reader holds a lease."""

    def __await__(self) -> Generator[Any, None, None]: ...

class Publication:
    """
    A catalog that peers can read, pinned to one step. Retires in `with`; when it is destroyed, it retires without waiting for readers.
    """

    def retire(self, timeout: shardwire._types.Seconds = 10) -> None:
        """
        Returns when no reader holds a lease; the caller may then change or free the memory. Raises TimedOut naming the remaining readers, whose restores do not commit.
        """

    def start_retire(self, timeout: shardwire._types.Seconds = 10) -> Retirement:
        """As retire(), without waiting."""

    def update(self, catalog: Catalog, step: int, *, snapshot: shardwire._types.Snapshot = 'none', timeout: shardwire._types.Seconds = 10) -> None:
        """
        Replaces this publication under the same name. Peers see the old or the new one, never neither. Then waits as retire() does.
        """

    def __enter__(self) -> Publication: ...

    def __exit__(self, *exception: object) -> None: ...

class Restore:
    """
    One running restore. Awaitable: gives its report. When it is destroyed, it is cancelled.
    """

    def poll(self) -> bool:
        """True once wait() would not block."""

    def wait_for(self, timeout: shardwire._types.Seconds) -> bool:
        """
        As wait(), for at most `timeout`. False if the operation is still running then.
        """

    def fileno(self) -> int:
        """
        A descriptor that is readable once wait() would not block, for event loops. Do not read or close it.
        """

    def wait(self, progress: Callable[[shardwire._types.Progress], object] | None = None, interval: shardwire._types.Seconds = 0.1) -> shardwire._report.Report:
        """
        Returns the report when every wanted element is in place. Calls `progress` on this thread meanwhile, once for each `interval`, and once at the end. Raises the error that ended the restore.
        """

    def wait_values(self) -> None:
        """
        Returns once all values have arrived, with `stop_at_values` before a byte is written; values() gives them from then on. Without it, returns at the end. Raises the error that ended the restore.
        """

    def values_ready(self) -> bool:
        """True once wait_values() would not block."""

    def proceed(self) -> None:
        """Lets a restore that stands at its values go on."""

    def cancel(self) -> None:
        """Stops it; wait() then raises Cancelled."""

    def resume(self, timeout: shardwire._types.Seconds) -> None:
        """
        Continues a restore that has failed or was cancelled, for at most `timeout`; wait for it again then. What is in place and proven stays. The rest comes from members that publish the same step and ranks, which it waits for. Leave the destination alone in between. Raises InvalidArgument if it runs or has completed.
        """

    @property
    def progress(self) -> shardwire._types.Progress: ...

    @property
    def report(self) -> shardwire._report.Report:
        """Valid after wait() returned or raised."""

    def value(self, fqn: str, state: str) -> shardwire._types.Value:
        """The value received. Valid after wait() or wait_values() returned."""

    def has_value(self, fqn: str, state: str) -> bool:
        """
        Whether value() gives one. Valid after wait() or wait_values() returned.
        """

    def values(self) -> dict[shardwire._types.TensorKey, shardwire._types.Value]:
        """
        All values received; several keys may have one object. Valid after wait() or wait_values() returned.
        """

    def __await__(self) -> Generator[Any, None, shardwire._report.Report]: ...

class Exchange:
    """
    A running exchange. Awaitable: gives its result. When it is destroyed, it is cancelled.
    """

    def poll(self) -> bool:
        """True once wait() would not block."""

    def wait_for(self, timeout: shardwire._types.Seconds) -> bool:
        """
        As wait(), for at most `timeout`. False if the operation is still running then.
        """

    def fileno(self) -> int:
        """
        A descriptor that is readable once wait() would not block, for event loops. Do not read or close it.
        """

    def wait(self, progress: Callable[[shardwire._types.Progress], object] | None = None, interval: shardwire._types.Seconds = 0.1) -> shardwire._report.ExchangeResult:
        """
        Returns the result when this member has all that it wants; `progress` as in Restore.wait().
        """

    def cancel(self) -> None:
        """Ends the exchange on every member."""

    @property
    def progress(self) -> shardwire._types.Progress: ...

    def __await__(self) -> Generator[Any, None, shardwire._report.ExchangeResult]: ...

class Inventory:
    """What the members of a job publish under one name at one step."""

    @property
    def step(self) -> int: ...

    @property
    def ranks(self) -> int:
        """Ranks of the layouts."""

    @property
    def publishers(self) -> list[shardwire._types.Publisher]:
        """Ascending by rank; empty: nobody publishes the name at the step."""

    @property
    def absent(self) -> list[int]:
        """Ranks of the layouts without a publication at the step."""

    @property
    def awaited(self) -> list[int]:
        """
        Members that could still publish an absent rank; empty: the publishers are final for this step.
        """

    @property
    def tensors(self) -> dict[shardwire._types.TensorKey, shardwire._types.TensorInfo]:
        """Of all publishers."""

    @property
    def aliases(self) -> dict[str, str]:
        """Second names of parameters."""

    @property
    def values(self) -> list[shardwire._types.TensorKey]:
        """Keys of the values that any of them publishes."""

    @property
    def held(self) -> JobLayout:
        """One side of plan()."""

    def layout(self, key: shardwire._types.TensorKey, rank: int) -> Layout | None:
        """The layout of a tensor by this rank; None without it."""

    def to_case(self, target: JobLayout | None = None) -> str:
        """
        The text of a case file, for `shardwire plan`, `perf` and `doctor --measure`: a restore of `target` (see Session.gather_layouts()) from these publications; without it, of what the ranks publish. Absent ranks are lost in the source.
        """

class Session:
    """
    Membership of one process in a job. Serves readers on a thread of its own. Leaves in `with`; inert in a child of fork().
    """

    @staticmethod
    def join(*, rank: int | None = None, world_size: int | None = None, local_size: int = 0, address: str | None = None, port: int | None = None, store: Any = None, interface: str = '', job_key: bytes = b'', allow_open_network: bool = False, guest: bool = False, run_id: str = '', transport: str = '', staging_bytes: int | None = None, join_timeout: shardwire._types.Seconds | None = None, copy_threads: int = 0, encrypt_payload: bool = False, keeper: str = '', keeper_socket: str = '', host_domain: str = '', spin: shardwire._types.Seconds | None = None, costs: str | None = None, log: Callable[[int, str], object] | None = None, telemetry: Callable[[str, str, float, dict[str, str]], object] | None = None) -> Session:
        """
        Joins the job. Without rank and world_size, the launcher's environment tells them. A `store` has put(key: str, value: bytes) and get(key: str, timeout: float) -> bytes | None, and replaces address and port. Raises TimedOut if member 0 does not answer. Calls `log(level, message)` with every message and the levels of `logging`, on a thread of its own; `logging.getLogger('shardwire').log` fits. Without it messages go there if the program has given this logger or one above it a handler by now, else to standard error. Calls `telemetry(kind, name, value, attributes)` likewise with each change of a metric; `kind` is 'counter', 'gauge' or 'histogram'.
        """

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def transports(self) -> list[str]:
        """Name and version of every open transport."""

    def allocate(self, nbytes: int, device: int | None = None) -> Arena:
        """Zeroed memory that peers can map or read directly."""

    def register(self, buffer: object) -> Registration:
        """
        Offers memory of the caller for direct reading by peers. The caller keeps it alive.
        """

    def publish(self, catalog: Catalog, *, step: int = 0, name: str = 'state', snapshot: shardwire._types.Snapshot = 'none', digest: bool = False, keep: int = 0, buddies: int = 0, buddy_bytes_per_second: int = 0) -> Publication:
        """
        Makes a catalog readable by peers. Without a snapshot the memory must not change until retire() returns. With `digest`, no restore commits bytes that differ from those that are published now. With `keep` > 0, the keeper of this host holds a copy beyond the end of this process, and so many of the name at a time; `snapshot` is ignored. With `buddies`, members of so many other hosts copy it for their keepers, once this has returned.
        """

    def restore(self, catalog: Catalog, *, name: str = 'state', step: int | None = None, step_rule: shardwire._types.StepRule = 'agreed', timeout: shardwire._types.Seconds = 60, staging_bytes: int = 268435456, verify: shardwire._types.Verify = 'generation', ingress_bytes_per_second: int = 0, replicas: shardwire._types.Replicas = 'spread', method: shardwire._types.RestoreMethod | None = None, bind_only: bool = False, stop_at_values: bool = False, discovery_grace: shardwire._types.Seconds = 2, notice: shardwire._types.Seconds = 5, done_events: Iterable[tuple[int, int]] = ()) -> Restore:
        """
        Starts pulling all that the catalog lists from its publishers. Errors of the restore surface in wait().
        """

    def exchange(self, held: Catalog, wanted: Catalog, *, timeout: shardwire._types.Seconds = 60, staging_bytes: int = 268435456, verify: shardwire._types.Verify = 'generation', ingress_bytes_per_second: int = 0, replicas: shardwire._types.Replicas = 'spread', method: shardwire._types.ExchangeMethod | None = None, communicator: int = 0) -> shardwire._report.ExchangeResult:
        """
        The collective form of publish and restore: every member calls it, with what it holds and wants. Wanted memory may share bytes with held memory.
        """

    def start_exchange(self, held: Catalog, wanted: Catalog, *, timeout: shardwire._types.Seconds = 60, staging_bytes: int = 268435456, verify: shardwire._types.Verify = 'generation', ingress_bytes_per_second: int = 0, replicas: shardwire._types.Replicas = 'spread', method: shardwire._types.ExchangeMethod | None = None, communicator: int = 0) -> Exchange:
        """As exchange(), on a thread of the library."""

    def gather(self, name: str, value: bytes, timeout: shardwire._types.Seconds) -> list[bytes]:
        """
        Exchanges one small value per member. The values of members 0..world_size-1. A name may be used again.
        """

    def barrier(self, timeout: shardwire._types.Seconds) -> None:
        """
        Returns once all members have called it, as often as this one has. After an error this member has not come.
        """

    def gather_layouts(self, catalog: Catalog, timeout: shardwire._types.Seconds) -> JobLayout:
        """
        The layouts of the catalogs of all members, as one side of plan() or the target of Inventory.to_case(). A member without a rank passes a catalog without tensors.
        """

    def inventory(self, name: str = 'state', step: int | None = None, timeout: shardwire._types.Seconds = 10) -> Inventory:
        """What members publish under the name at this moment."""

    def await_step(self, name: str, step: int | None = None, timeout: shardwire._types.Seconds = 60) -> Inventory:
        """
        Returns the inventory once every rank has published the step, or the absent ones can no more. Without a step: once this holds for any; the newest complete one then counts.
        """

    def paths(self, name: str = 'state', timeout: shardwire._types.Seconds = 10) -> list[shardwire._types.PeerPath]:
        """The paths from this process to each current publisher."""

    def usage(self) -> shardwire._types.SessionUsage: ...

    def close(self, timeout: shardwire._types.Seconds = 10) -> None:
        """Leaves in order: retires all publications and waits for their readers."""

    def __enter__(self) -> Session: ...

    def __exit__(self, *exception: object) -> None: ...

def end() -> None:
    """Leaves all sessions; for the end of the interpreter."""

version: str = '0.1.0'
