// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include "catalog.hpp"

namespace shardwire::python {

namespace {

template <typename... Arguments>
nb::object make_report(const char* name, Arguments&&... arguments) {
  return attribute("shardwire._report", name)(std::forward<Arguments>(arguments)...);
}

nb::list keys(const std::vector<TensorKey>& all) {
  nb::list out;
  for (const TensorKey& key : all) out.append(to_python(key));
  return out;
}

nb::list texts(const std::vector<std::string>& all) {
  nb::list out;
  for (const std::string& text : all) out.append(nb::str(text.data(), text.size()));
  return out;
}

}  // namespace

nb::object to_python(const RestoreReport& report) {
  nb::dict methods;
  report.methods.each([&](Method method, const MethodReport& row) {
    const std::string name(to_string(method));
    methods[nb::str(name.c_str())] =
        make_report("MethodReport", row.bytes, row.runs, row.predicted_seconds, row.measured_seconds);
  });
  const StageSeconds& s = report.seconds;
  nb::list peers;
  for (const PeerReport& peer : report.peers) {
    peers.append(make_report("PeerReport", to_int(peer.rank), peer.bytes, peer.path, peer.device,
                             std::string(to_string(peer.fallback_reason)), peer.fallback_detail, peer.predicted_seconds,
                             peer.measured_seconds));
  }
  nb::list lost;
  for (const LostSource& one : report.lost) {
    lost.append(make_report("LostSource", to_int(one.rank), std::string(to_string(one.reason)), one.why,
                            one.after_seconds, one.boxes_replanned, one.resent_bytes));
  }
  nb::list corrupt;
  for (const CorruptBox& one : report.corrupt) {
    corrupt.append(make_report("CorruptBox", one.fqn, one.state, to_python(one.box), to_int(one.source)));
  }
  nb::list incomplete;
  for (const IncompleteStep& one : report.incomplete_steps) {
    nb::list gaps;
    for (const Gap& gap : one.gaps) gaps.append(to_python(gap));
    incomplete.append(make_report("IncompleteStep", one.step, gaps));
  }
  return make_report("Report", report.needed_bytes, report.moved_bytes, report.local_bytes, report.overread_bytes,
                     report.resent_bytes, methods, report.rounds, report.rounds_bytes, report.rounds_seconds,
                     make_report("StageSeconds", s.wall, s.join, s.plan, s.bind, s.move, s.verify, s.commit),
                     report.staging_budget_bytes, report.staging_peak_bytes, report.registered_bytes,
                     report.registration_seconds, report.digest_seconds, report.transport, peers, keys(report.skipped),
                     keys(report.zeroed), lost, corrupt, report.step, incomplete);
}

nb::object to_python(const ExchangeResult& result) {
  return make_report("ExchangeResult", to_python(result.report), values_to_python(result.values));
}

nb::object to_python(const SessionUsage& usage) {
  return make("SessionUsage", usage.serving_budget_bytes, usage.serving_peak_bytes, usage.registered_bytes,
              usage.registration_seconds, usage.pinned_bytes);
}

nb::object to_python(const PeerPath& path) {
  nb::list memory;
  for (const MemoryPaths& kind : path.memory) {
    nb::list transports;
    for (const TransportPath& one : kind.transports) {
      transports.append(make("TransportPath", one.transport, one.device, std::string(to_string(one.reach)), one.map,
                             one.read, one.message, one.gpu_direct, std::string(to_string(one.fallback_reason)),
                             one.fallback_detail));
    }
    nb::list rejected;
    for (const RejectedTransport& one : kind.rejected) {
      rejected.append(make("RejectedTransport", one.transport, std::string(to_string(one.reason)), one.detail));
    }
    memory.append(make("MemoryPaths", kind.memory == MemoryKind::cuda ? "cuda" : "host", transports, rejected));
  }
  return make("PeerPath", path.member, to_int(path.rank), path.address, memory, path.failure);
}

}  // namespace shardwire::python
