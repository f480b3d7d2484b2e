// SPDX-License-Identifier: Apache-2.0
#include "operations.hpp"

#include <algorithm>
#include <unordered_map>

#include "bindings.hpp"
#include "catalog.hpp"
#include "report.hpp"

namespace shardwire::python {

namespace {

nb::object progress_to_python(const Progress& progress) {
  return make("Progress", progress.stage, progress.done_bytes, progress.total_bytes);
}

// Waits, and calls `progress` on this thread meanwhile. The last call tells of the end.
template <typename Operation>
void wait(Running<Operation>& self, const nb::object& progress, const Seconds& interval) {
  if (progress.is_none()) return unlocked([&] { self.operation.wait(); });
  const Duration slice = interval;
  const auto tell = [&] { progress(progress_to_python(self.progress->load())); };
  try {
    while (!unlocked([&] { return self.operation.wait_for(slice); })) tell();
  } catch (const Error&) {
    if (self.operation.poll()) tell();
    throw;
  }
  tell();
}

nb::object report_of(const Restore& restore) {
  return to_python(restore.report());
}

nb::object value_of(const PyRestore& self, std::string fqn, std::string state) {
  return to_python(self.operation.value({std::move(fqn), std::move(state)}));
}

nb::object values_of(const PyRestore& self) {
  nb::dict out;
  Keys keys;
  std::unordered_map<const Value*, nb::object> made;  // many keys may have one
  for (const TensorKey& key : self.values) {
    if (!self.operation.has_value(key)) continue;
    const Value& value = self.operation.value(key);
    nb::object& object = made[&value];
    if (!object.is_valid()) object = to_python(value);
    out[keys.of(key)] = object;
  }
  return out;
}

// The members that every operation with an end has. `Get` gives the operation of the Python object.
template <typename Class, typename Get>
void bind_end(Class& bound, Get get) {
  using Self = typename Class::Type;
  bound
      .def(
          "poll", [get](Self& self) { return get(self).poll(); }, "True once wait() would not block.")
      .def(
          "wait_for",
          [get](Self& self, const Seconds& timeout) { return unlocked([&] { return get(self).wait_for(timeout); }); },
          nb::arg("timeout"), "As wait(), for at most `timeout`. False if the operation is still running then.",
          nb::sig("def wait_for(self, timeout: shardwire._types.Seconds) -> bool"))
      .def(
          "fileno", [get](Self& self) { return get(self).event_descriptor(); },
          "A descriptor that is readable once wait() would not block, for event loops. Do not read or close it.");
}

nb::object until_done(const nb::object& self) {
  return attribute("shardwire._awaiting", "until_done")(self);
}

}  // namespace

void bind_operations(nb::module_& module) {
  nb::class_<Retirement> retirement(module, "Retirement", "A publication that is being retired. Awaitable.");
  bind_end(retirement, [](Retirement& self) -> Retirement& { return self; });
  retirement
      .def(
          "wait", [](Retirement& self) { unlocked([&] { self.wait(); }); }, "Returns when no reader holds a lease.")
      .def("__await__", &until_done,
           nb::sig("def __await__(self) -> collections.abc.Generator[typing.Any, None, None]"));

  nb::class_<PyPublication>(
      module, "Publication",
      "A catalog that peers can read, pinned to one step. Retires in `with`; when it is destroyed, it "
      "retires without waiting for readers.")
      .def(
          "retire",
          [](PyPublication& self, const Seconds& timeout) { unlocked([&] { self.publication.retire(timeout); }); },
          nb::arg("timeout") = Seconds{10},
          "Returns when no reader holds a lease; the caller may then change or free the memory. Raises TimedOut naming "
          "the "
          "remaining readers, whose restores do not commit.",
          nb::sig("def retire(self, timeout: shardwire._types.Seconds = 10) -> None"))
      .def(
          "start_retire",
          [](PyPublication& self, const Seconds& timeout) { return self.publication.start_retire(timeout); },
          nb::arg("timeout") = Seconds{10}, "As retire(), without waiting.",
          nb::sig("def start_retire(self, timeout: shardwire._types.Seconds = 10) -> Retirement"))
      .def(
          "update",
          [](PyPublication& self, const PyCatalog& held, std::int64_t step, const Name& copied,
             const Seconds& timeout) {
            const Catalog catalog = held.catalog;
            const Snapshot kind = snapshot(copied);
            unlocked([&] { self.publication.update(catalog, step, kind, timeout); });
          },
          nb::arg("catalog"), nb::arg("step"), nb::kw_only(), nb::arg("snapshot") = Name{"none"},
          nb::arg("timeout") = Seconds{10},
          "Replaces this publication under the same name. Peers see the old or the new one, never neither. Then waits "
          "as "
          "retire() does.",
          nb::sig(
              "def update(self, catalog: Catalog, step: int, *, snapshot: shardwire._types.Snapshot = 'none', timeout: "
              "shardwire._types.Seconds = 10) -> None"))
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Publication"))
      .def(
          "__exit__",
          [](PyPublication& self, const nb::args&) {
            unlocked([&] { self.publication.retire(std::chrono::seconds(10)); });
          },
          nb::sig("def __exit__(self, *exception: object) -> None"));

  nb::class_<PyRestore> restore(
      module, "Restore", "One running restore. Awaitable: gives its report. When it is destroyed, it is cancelled.");
  bind_end(restore, [](PyRestore& self) -> Restore& { return self.operation; });
  restore
      .def(
          "wait",
          [](PyRestore& self, const nb::object& progress, const Seconds& interval) {
            wait(self, progress, interval);
            return report_of(self.operation);
          },
          nb::arg("progress").none() = nb::none(), nb::arg("interval") = Seconds{0.1},
          "Returns the report when every wanted element is in place. Calls `progress` on this thread meanwhile, once "
          "for each "
          "`interval`, and once at the end. Raises the error that ended the restore.",
          nb::sig(
              "def wait(self, progress: collections.abc.Callable[[shardwire._types.Progress], object] | None = None, "
              "interval: shardwire._types.Seconds = 0.1) -> shardwire._report.Report"))
      .def(
          "wait_values", [](PyRestore& self) { unlocked([&] { self.operation.wait_values(); }); },
          "Returns once all values have arrived, with `stop_at_values` before a byte is written; values() gives them "
          "from "
          "then on. "
          "Without it, returns at the end. Raises the error that ended the restore.")
      .def(
          "values_ready", [](PyRestore& self) { return self.operation.values_ready(); },
          "True once wait_values() would not block.")
      .def(
          "proceed", [](PyRestore& self) { unlocked([&] { self.operation.proceed(); }); },
          "Lets a restore that stands at its values go on.")
      .def(
          "cancel", [](PyRestore& self) { unlocked([&] { self.operation.cancel(); }); },
          "Stops it; wait() then raises Cancelled.")
      .def(
          "resume", [](PyRestore& self, const Seconds& timeout) { unlocked([&] { self.operation.resume(timeout); }); },
          nb::arg("timeout"),
          "Continues a restore that has failed or was cancelled, for at most `timeout`; wait for it again then. What "
          "is in place and proven stays. The rest comes from members that publish the same step and ranks, which it "
          "waits for. Leave the destination alone in between. Raises InvalidArgument if it runs or has completed.",
          nb::sig("def resume(self, timeout: shardwire._types.Seconds) -> None"))
      .def_prop_ro(
          "progress", [](PyRestore& self) { return progress_to_python(self.progress->load()); },
          nb::sig("def progress(self) -> shardwire._types.Progress"))
      .def_prop_ro(
          "report", [](const PyRestore& self) { return report_of(self.operation); },
          "Valid after wait() returned or raised.", nb::sig("def report(self) -> shardwire._report.Report"))
      .def("value", &value_of, nb::arg("fqn"), nb::arg("state"),
           "The value received. Valid after wait() or wait_values() returned.",
           nb::sig("def value(self, fqn: str, state: str) -> shardwire._types.Value"))
      .def(
          "has_value",
          [](const PyRestore& self, std::string fqn, std::string state) {
            return self.operation.has_value({std::move(fqn), std::move(state)});
          },
          nb::arg("fqn"), nb::arg("state"), "Whether value() gives one. Valid after wait() or wait_values() returned.")
      .def("values", &values_of,
           "All values received; several keys may have one object. Valid after wait() or wait_values() returned.",
           nb::sig("def values(self) -> dict[shardwire._types.TensorKey, shardwire._types.Value]"))
      .def("__await__", &until_done,
           nb::sig("def __await__(self) -> collections.abc.Generator[typing.Any, None, shardwire._report.Report]"));

  nb::class_<PyExchange> exchange(
      module, "Exchange", "A running exchange. Awaitable: gives its result. When it is destroyed, it is cancelled.");
  bind_end(exchange, [](PyExchange& self) -> Exchange& { return self.operation; });
  exchange
      .def(
          "wait",
          [](PyExchange& self, const nb::object& progress, const Seconds& interval) {
            wait(self, progress, interval);
            return to_python(self.operation.result());
          },
          nb::arg("progress").none() = nb::none(), nb::arg("interval") = Seconds{0.1},
          "Returns the result when this member has all that it wants; `progress` as in Restore.wait().",
          nb::sig(
              "def wait(self, progress: collections.abc.Callable[[shardwire._types.Progress], object] | None = None, "
              "interval: shardwire._types.Seconds = 0.1) -> shardwire._report.ExchangeResult"))
      .def(
          "cancel", [](PyExchange& self) { unlocked([&] { self.operation.cancel(); }); },
          "Ends the exchange on every member.")
      .def_prop_ro(
          "progress", [](PyExchange& self) { return progress_to_python(self.progress->load()); },
          nb::sig("def progress(self) -> shardwire._types.Progress"))
      .def("__await__", &until_done,
           nb::sig(
               "def __await__(self) -> collections.abc.Generator[typing.Any, None, shardwire._report.ExchangeResult]"));
}

}  // namespace shardwire::python
