// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <set>

#include "bindings.hpp"
#include "catalog.hpp"
#include "log.hpp"
#include "memory.hpp"
#include "operations.hpp"
#include "report.hpp"
#include "store.hpp"

namespace shardwire::python {

namespace {

/// Takes the named options out of the keywords of a call.
class Keywords {
 public:
  Keywords(const char* call, nb::kwargs given) : call_(call), left_(nb::borrow<nb::dict>(given)) {}

  template <typename T, typename Field>
  void take(const char* name, Field& field) {
    if (!left_.contains(name)) return;
    const nb::object value = left_[name];
    PyDict_DelItemString(left_.ptr(), name);
    if (value.is_none()) return;
    T converted{};
    if (!nb::try_cast(value, converted)) {
      throw nb::type_error((std::string(call_) + "(): " + name + " is " + nb::repr(value).c_str()).c_str());
    }
    field = converted;
  }
  void require_empty() {
    for (const auto& [name, value] : left_) {
      static_cast<void>(value);
      throw nb::type_error((std::string(call_) + "() has no option " + nb::repr(name).c_str()).c_str());
    }
  }

 private:
  const char* call_;
  nb::dict left_;
};

class PySession;
std::set<PySession*>& sessions() {
  static auto& all = *new std::set<PySession*>;  // guarded by the interpreter's lock
  return all;
}

class PySession {
 public:
  explicit PySession(Session joined) : session_(std::move(joined)) { sessions().insert(this); }
  PySession(const PySession&) = delete;
  ~PySession() {
    sessions().erase(this);
    end_unlocked(session_);
  }
  Session& operator*() { return session_; }
  Session* operator->() { return &session_; }

 private:
  Session session_;
};

PySession* join(const nb::kwargs& given) {
  Keywords keywords("join", given);
  std::optional<int> rank, world_size;
  std::optional<nb::object> store;
  keywords.take<int>("rank", rank);
  keywords.take<int>("world_size", world_size);
  keywords.take<nb::object>("store", store);
  if (rank.has_value() != world_size.has_value()) {
    throw Error(ErrorCode::invalid_argument, "join() takes rank and world_size together, or neither");
  }
  Bootstrap bootstrap;
  if (store) {
    if (!rank) throw Error(ErrorCode::invalid_argument, "join() with a store needs rank and world_size");
    bootstrap = bootstrap_from_store(std::make_shared<PyStore>(*store), *rank, *world_size);
  } else if (!rank) {
    bootstrap = unlocked([] { return bootstrap_from_env(); });
  } else {
    bootstrap.rank = *rank;
    bootstrap.world_size = *world_size;
  }
  keywords.take<int>("local_size", bootstrap.local_size);
  keywords.take<std::string>("address", bootstrap.address);
  keywords.take<int>("port", bootstrap.port);
  keywords.take<std::string>("interface", bootstrap.interface);
  keywords.take<std::string>("run_id", bootstrap.run_id);
  std::optional<nb::object> key;
  keywords.take<nb::object>("job_key", key);
  if (key) bootstrap.job_key = bytes_from(nb::cast<nb::bytes>(*key));
  keywords.take<bool>("allow_open_network", bootstrap.allow_open_network);
  keywords.take<bool>("guest", bootstrap.guest);
  SessionOptions options;
  keywords.take<std::string>("transport", options.transport);
  keywords.take<ByteCount>("staging_bytes", options.staging_bytes);
  keywords.take<Seconds>("join_timeout", options.join_timeout);
  keywords.take<unsigned>("copy_threads", options.copy_threads);
  keywords.take<bool>("encrypt_payload", options.encrypt_payload);
  keywords.take<std::string>("keeper", options.keeper.job);
  keywords.take<std::string>("keeper_socket", options.keeper.socket);
  keywords.take<std::string>("host_domain", options.host_domain);
  keywords.take<Seconds>("spin", options.progress.spin);
  std::string costs;
  keywords.take<std::string>("costs", costs);
  std::optional<nb::callable> log;
  keywords.take<nb::callable>("log", log);
  std::optional<nb::callable> telemetry;
  keywords.take<nb::callable>("telemetry", telemetry);
  keywords.require_empty();
  if (!costs.empty()) options.costs = load_costs(costs);
  options.log = log ? log_to(*log) : log_to_logger();
  if (telemetry) options.telemetry = telemetry_to(*telemetry);
  options.interrupted = check_signals;
  return new PySession(unlocked([&] { return Session::join(std::move(bootstrap), std::move(options)); }));
}

PyPublication publish(PySession& self, const PyCatalog& held, std::int64_t step, const std::string& name,
                      const Name& copied, bool digest, int keep, int buddies, ByteCount buddy_bytes_per_second) {
  const Catalog catalog = held.catalog;
  const PublishOptions options{.name = name,
                               .step = step,
                               .snapshot = snapshot(copied),
                               .digest = digest,
                               .keep = {.steps = keep},
                               .buddies = buddies,
                               .buddy_bytes_per_second = buddy_bytes_per_second};
  return {unlocked([&] { return self->publish(catalog, options); })};
}

std::vector<DoneEvent> done_events(const nb::object& pairs) {
  std::vector<DoneEvent> events;
  for (const nb::handle pair : pairs) {
    const auto [event, device] = nb::cast<std::pair<nb::object, int>>(pair);
    events.push_back({reinterpret_cast<void*>(nb::cast<std::uintptr_t>(event)), device});
  }
  return events;
}

// The options that a restore and an exchange share.
template <typename Chosen>
void take_common(Keywords& keywords, Chosen& options) {
  keywords.take<Seconds>("timeout", options.timeout);
  keywords.take<ByteCount>("staging_bytes", options.staging_bytes);
  keywords.take<ByteCount>("ingress_bytes_per_second", options.ingress_bytes_per_second);
  std::optional<Name> verified, copies;
  keywords.take<Name>("verify", verified);
  keywords.take<Name>("replicas", copies);
  if (verified) options.verify = verify(*verified);
  if (copies) options.replicas = replicas(*copies);
}

PyRestore* restore(PySession& self, const PyCatalog& wanted, const nb::kwargs& given) {
  Keywords keywords("restore", given);
  RestoreOptions options;
  take_common(keywords, options);
  keywords.take<std::string>("name", options.name);
  keywords.take<std::int64_t>("step", options.step);
  std::optional<Name> rule, by;
  keywords.take<Name>("step_rule", rule);
  keywords.take<Name>("method", by);
  if (rule) options.step_rule = step_rule(*rule);
  if (by) options.method = restore_method(*by);
  keywords.take<bool>("bind_only", options.bind_only);
  keywords.take<bool>("stop_at_values", options.stop_at_values);
  keywords.take<Seconds>("discovery_grace", options.discovery_grace);
  keywords.take<Seconds>("notice", options.notice);
  std::optional<nb::object> events;
  keywords.take<nb::object>("done_events", events);
  if (events) options.done_events = done_events(*events);
  keywords.require_empty();
  const Catalog catalog = wanted.catalog;
  auto started = std::make_unique<PyRestore>(unlocked([&] { return self->restore(catalog, std::move(options)); }));
  for (const Catalog::ValueEntry& entry : catalog.values()) started->values.push_back(entry.key);
  return started.release();
}

ExchangeOptions exchange_options(const char* call, const nb::kwargs& given) {
  Keywords keywords(call, given);
  ExchangeOptions options;
  take_common(keywords, options);
  std::optional<Name> by;
  keywords.take<Name>("method", by);
  if (by) options.method = exchange_method(*by);
  std::uintptr_t communicator = 0;
  keywords.take<std::uintptr_t>("communicator", communicator);
  options.communicator = reinterpret_cast<void*>(communicator);
  keywords.require_empty();
  return options;
}

nb::object exchange(PySession& self, const PyCatalog& held, const PyCatalog& wanted, const nb::kwargs& given) {
  const ExchangeOptions options = exchange_options("exchange", given);
  const Catalog from = held.catalog, to = wanted.catalog;
  return to_python(unlocked([&] { return self->exchange(from, to, options); }));
}

PyExchange* start_exchange(PySession& self, const PyCatalog& held, const PyCatalog& wanted, const nb::kwargs& given) {
  const ExchangeOptions options = exchange_options("start_exchange", given);
  const Catalog from = held.catalog, to = wanted.catalog;
  return new PyExchange(unlocked([&] { return self->start_exchange(from, to, options); }));
}

nb::list gather(PySession& self, const std::string& name, const nb::bytes& value, const Seconds& timeout) {
  const std::vector<Bytes> all = unlocked([&, sent = bytes_from(value)] { return self->gather(name, sent, timeout); });
  nb::list out;
  for (const Bytes& one : all) out.append(to_python(one));
  return out;
}

void barrier(PySession& self, const Seconds& timeout) {
  unlocked([&] { self->barrier(timeout); });
}

JobLayout gather_layouts(PySession& self, const PyCatalog& given, const Seconds& timeout) {
  return unlocked([&, catalog = given.catalog] { return self->gather_layouts(catalog, timeout); });
}

void close(PySession& self, const Seconds& timeout) {
  unlocked([&] { self->close(timeout); });
}

// Before objects of Python go: threads of the library may keep some.
void end() {
  begin_end();
  for (PySession* one : std::set(sessions())) {
    try {
      close(*one, {0});
    } catch (const std::exception&) {  // its readers were told; nobody is left to be told here
    }
  }
  unlocked([] { stop_releasing_owners(std::chrono::seconds(1)); });
  end_logs();
}

nb::object inventory(PySession& self, const std::string& name, std::optional<std::int64_t> step,
                     const Seconds& timeout) {
  return nb::cast(unlocked([&] { return self->inventory(name, step, timeout); }));
}

nb::object await_step(PySession& self, const std::string& name, std::optional<std::int64_t> step,
                      const Seconds& timeout) {
  return nb::cast(unlocked([&] { return self->await_step(name, step, timeout); }));
}

nb::list paths(PySession& self, const std::string& name, const Seconds& timeout) {
  const std::vector<PeerPath> all = unlocked([&] { return self->paths(name, timeout); });
  nb::list out;
  for (const PeerPath& one : all) out.append(to_python(one));
  return out;
}

nb::dict inventory_tensors(const Inventory& self) {
  nb::dict out;
  Keys keys;
  for (const Section& section : self.held.sections) {
    for (const TensorLayout& tensor : section.manifest->tensors)
      out[keys.of(tensor.spec.key)] = keys.info_of(tensor.spec);
  }
  return out;
}

nb::object inventory_layout(const Inventory& self, const nb::object& key, int rank) {
  const auto [fqn, state] = nb::cast<std::pair<std::string, std::string>>(key);
  for (const Section& section : self.held.sections) {
    if (!std::ranges::binary_search(section.ranks, Rank{rank})) continue;
    for (const TensorLayout& tensor : section.manifest->tensors) {
      if (tensor.spec.key.fqn == fqn && tensor.spec.key.state == state) return nb::cast(tensor.layout);
    }
  }
  return nb::none();
}

void bind_inventory(nb::module_& module) {
  nb::class_<Inventory>(module, "Inventory", "What the members of a job publish under one name at one step.")
      .def_ro("step", &Inventory::step)
      .def_prop_ro(
          "ranks", [](const Inventory& self) { return self.held.ranks; }, "Ranks of the layouts.")
      .def_prop_ro(
          "publishers",
          [](const Inventory& self) {
            nb::list out;
            for (const Inventory::Publisher& one : self.publishers)
              out.append(make("Publisher", to_int(one.rank), one.member));
            return out;
          },
          "Ascending by rank; empty: nobody publishes the name at the step.",
          nb::sig("def publishers(self) -> list[shardwire._types.Publisher]"))
      .def_prop_ro(
          "absent", [](const Inventory& self) { return ranks_to_python(self.absent); },
          "Ranks of the layouts without a publication at the step.", nb::sig("def absent(self) -> list[int]"))
      .def_prop_ro(
          "awaited", [](const Inventory& self) { return self.awaited; },
          "Members that could still publish an absent rank; empty: the publishers are final for this step.")
      .def_prop_ro("tensors", &inventory_tensors, "Of all publishers.",
                   nb::sig("def tensors(self) -> dict[shardwire._types.TensorKey, shardwire._types.TensorInfo]"))
      .def_prop_ro(
          "aliases",
          [](const Inventory& self) {
            nb::dict out;
            for (const Section& section : self.held.sections) {
              for (const Alias& one : section.manifest->aliases) out[nb::str(one.alias.c_str())] = one.fqn;
            }
            return out;
          },
          "Second names of parameters.", nb::sig("def aliases(self) -> dict[str, str]"))
      .def_prop_ro(
          "values",
          [](const Inventory& self) {
            nb::list out;
            Keys keys;
            for (const TensorKey& key : self.values) out.append(keys.of(key));
            return out;
          },
          "Keys of the values that any of them publishes.",
          nb::sig("def values(self) -> list[shardwire._types.TensorKey]"))
      .def_ro("held", &Inventory::held, "One side of plan().")
      .def("layout", &inventory_layout, nb::arg("key"), nb::arg("rank"),
           "The layout of a tensor by this rank; None without it.",
           nb::sig("def layout(self, key: shardwire._types.TensorKey, rank: int) -> Layout | None"))
      .def(
          "to_case",
          [](const Inventory& self, const JobLayout* target) {
            return target == nullptr ? self.to_case() : self.to_case(*target);
          },
          nb::arg("target").none() = nb::none(),
          "The text of a case file, for `shardwire plan`, `perf` and `doctor --measure`: a restore of `target` (see "
          "Session.gather_layouts()) from these publications; without it, of what the ranks publish. Absent ranks are "
          "lost in the source.",
          nb::sig("def to_case(self, target: JobLayout | None = None) -> str"));
}

constexpr const char* common_options =
    "timeout: shardwire._types.Seconds = 60, staging_bytes: int = 268435456, verify: shardwire._types.Verify = "
    "'generation', "
    "ingress_bytes_per_second: int = 0, replicas: shardwire._types.Replicas = 'spread', ";

}  // namespace

void bind_session(nb::module_& module) {
  bind_inventory(module);
  // Signatures live as long as the module.
  static const std::string restore_signature =
      std::string(
          "def restore(self, catalog: Catalog, *, name: str = 'state', step: int | None = None, "
          "step_rule: shardwire._types.StepRule = 'agreed', ") +
      common_options +
      "method: shardwire._types.RestoreMethod | None = None, "
      "bind_only: bool = False, stop_at_values: bool = False, discovery_grace: shardwire._types.Seconds = 2, "
      "notice: shardwire._types.Seconds = 5, done_events: "
      "collections.abc.Iterable[tuple[int, int]] = ()) -> Restore";
  static const std::string exchange_signature =
      std::string("(self, held: Catalog, wanted: Catalog, *, ") + common_options +
      "method: shardwire._types.ExchangeMethod | None = None, communicator: int = 0) -> ";
  static const std::string exchange_now = "def exchange" + exchange_signature + "shardwire._report.ExchangeResult";
  static const std::string exchange_started = "def start_exchange" + exchange_signature + "Exchange";
  nb::class_<PySession>(
      module, "Session",
      "Membership of one process in a job. Serves readers on a thread of its own. Leaves in `with`; inert in a "
      "child of fork().")
      .def_static(
          "join", &join, nb::arg("options"),
          "Joins the job. Without rank and world_size, the launcher's environment tells them. A `store` has put(key: "
          "str, "
          "value: bytes) and get(key: str, timeout: float) -> bytes | None, and replaces address and port. Raises "
          "TimedOut "
          "if member 0 does not answer. Calls `log(level, message)` with every message and the levels of `logging`, on "
          "a "
          "thread of its own; `logging.getLogger('shardwire').log` fits. Without it messages go there if the program "
          "has given this logger or one above it a handler by now, else to standard error. Calls `telemetry(kind, "
          "name, value, attributes)` likewise with each change of a metric; `kind` is 'counter', 'gauge' or "
          "'histogram'.",
          nb::sig(
              "def join(*, rank: int | None = None, world_size: int | None = None, local_size: int = 0, address: str | "
              "None = None, port: int | None = None, store: typing.Any = None, interface: str = '', job_key: bytes = "
              "b'', "
              "allow_open_network: bool = False, guest: bool = False, run_id: str = '', transport: str = '', "
              "staging_bytes: int | None = "
              "None, "
              "join_timeout: shardwire._types.Seconds | None = None, copy_threads: int = 0, encrypt_payload: bool = "
              "False, keeper: str = '', keeper_socket: str = '', host_domain: str = '', "
              "spin: shardwire._types.Seconds | None = None, costs: str | None = None, "
              "log: collections.abc.Callable[[int, str], object] | None = None, "
              "telemetry: collections.abc.Callable[[str, str, float, dict[str, str]], object] | None = None) -> "
              "Session"))
      .def_prop_ro("rank", [](PySession& self) { return self->rank(); })
      .def_prop_ro("world_size", [](PySession& self) { return self->world_size(); })
      .def_prop_ro(
          "transports", [](PySession& self) { return self->transports(); }, "Name and version of every open transport.")
      .def(
          "allocate",
          [](PySession& self, ByteCount nbytes, std::optional<int> device) {
            return unlocked(
                [&] { return device ? self->allocate(nbytes, MemoryKind::cuda, *device) : self->allocate(nbytes); });
          },
          nb::arg("nbytes"), nb::arg("device") = nb::none(), "Zeroed memory that peers can map or read directly.")
      .def(
          "register",
          [](PySession& self, const nb::object& buffer) {
            const View view = view_from(buffer);
            return unlocked([&] { return self->register_memory(view); });
          },
          nb::arg("buffer"), "Offers memory of the caller for direct reading by peers. The caller keeps it alive.")
      .def("publish", &publish, nb::arg("catalog"), nb::kw_only(), nb::arg("step") = 0, nb::arg("name") = "state",
           nb::arg("snapshot") = Name{"none"}, nb::arg("digest") = false, nb::arg("keep") = 0, nb::arg("buddies") = 0,
           nb::arg("buddy_bytes_per_second") = 0,
           "Makes a catalog readable by peers. Without a snapshot the memory must not change until retire() returns. "
           "With "
           "`digest`, no restore commits bytes that differ from those that are published now. With `keep` > 0, the "
           "keeper "
           "of this host holds a copy beyond the end of this process, and so many of the name at a time; `snapshot` is "
           "ignored. With `buddies`, members of so many other hosts copy it for their keepers, once this has returned.",
           nb::sig("def publish(self, catalog: Catalog, *, step: int = 0, name: str = 'state', snapshot: "
                   "shardwire._types.Snapshot = 'none', digest: bool = False, keep: int = 0, buddies: int = 0, "
                   "buddy_bytes_per_second: int = 0) -> Publication"))
      .def("restore", &restore, nb::arg("catalog"), nb::arg("options"),
           "Starts pulling all that the catalog lists from its publishers. Errors of the restore surface in wait().",
           nb::sig(restore_signature.c_str()))
      .def("exchange", &exchange, nb::arg("held"), nb::arg("wanted"), nb::arg("options"),
           "The collective form of publish and restore: every member calls it, with what it holds and wants. Wanted "
           "memory may "
           "share bytes with held memory.",
           nb::sig(exchange_now.c_str()))
      .def("start_exchange", &start_exchange, nb::arg("held"), nb::arg("wanted"), nb::arg("options"),
           "As exchange(), on a thread of the library.", nb::sig(exchange_started.c_str()))
      .def("gather", &gather, nb::arg("name"), nb::arg("value"), nb::arg("timeout"),
           "Exchanges one small value per member. The values of members 0..world_size-1. A name may be used again.",
           nb::sig("def gather(self, name: str, value: bytes, timeout: shardwire._types.Seconds) -> list[bytes]"))
      .def(
          "barrier", &barrier, nb::arg("timeout"),
          "Returns once all members have called it, as often as this one has. After an error this member has not come.",
          nb::sig("def barrier(self, timeout: shardwire._types.Seconds) -> None"))
      .def("gather_layouts", &gather_layouts, nb::arg("catalog"), nb::arg("timeout"),
           "The layouts of the catalogs of all members, as one side of plan() or the target of Inventory.to_case(). A "
           "member without a rank passes a catalog without tensors.",
           nb::sig("def gather_layouts(self, catalog: Catalog, timeout: shardwire._types.Seconds) -> JobLayout"))
      .def("inventory", &inventory, nb::arg("name") = "state", nb::arg("step") = nb::none(),
           nb::arg("timeout") = Seconds{10}, "What members publish under the name at this moment.",
           nb::sig("def inventory(self, name: str = 'state', step: int | None = None, timeout: "
                   "shardwire._types.Seconds = 10) -> "
                   "Inventory"))
      .def("await_step", &await_step, nb::arg("name"), nb::arg("step").none() = nb::none(),
           nb::arg("timeout") = Seconds{60},
           "Returns the inventory once every rank has published the step, or the absent ones can no more. Without a "
           "step: once "
           "this holds for any; the newest complete one then counts.",
           nb::sig("def await_step(self, name: str, step: int | None = None, timeout: shardwire._types.Seconds = 60) "
                   "-> Inventory"))
      .def("paths", &paths, nb::arg("name") = "state", nb::arg("timeout") = Seconds{10},
           "The paths from this process to each current publisher.",
           nb::sig("def paths(self, name: str = 'state', timeout: shardwire._types.Seconds = 10) -> "
                   "list[shardwire._types.PeerPath]"))
      .def(
          "usage", [](PySession& self) { return to_python(self->usage()); },
          nb::sig("def usage(self) -> shardwire._types.SessionUsage"))
      .def("close", &close, nb::arg("timeout") = Seconds{10},
           "Leaves in order: retires all publications and waits for their readers.",
           nb::sig("def close(self, timeout: shardwire._types.Seconds = 10) -> None"))
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Session"))
      .def(
          "__exit__", [](PySession& self, const nb::args&) { close(self, {10}); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
  module.def("end", &end, "Leaves all sessions; for the end of the interpreter.");
}

}  // namespace shardwire::python
