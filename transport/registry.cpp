// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "memory/device.hpp"
#include "support/environment.hpp"
#include "support/module.hpp"
#include "support/nearest.hpp"
#include "transport/collective.hpp"
#include "transport/config.hpp"
#include "transport/module.hpp"
#include "transport/rdma.hpp"
#include "transport/transport.hpp"

namespace shardwire::transport {

namespace {

// Table of the module of an external fabric. The module is loaded only when the fabric is requested: it brings the
// fabric's library, with all its side effects on the process.
const FabricModule* table_of(const support::Module& module) {
  return static_cast<const FabricModule*>(module.table);
}

}  // namespace

namespace ucx {

// A transport that is not in this build keeps its line, so that users who request it get the reason.
static const support::Module& module() {
  static const support::Module loaded = support::load_module("ucx");
  return loaded;
}
// The kernel is queried first: without suitable hardware the library is not loaded. UCX_TLS may be meant for another
// library, such as MPI, so it counts only if the user asked for UCX.
static Viability probe(Asked asked) {
  if (!support::why_left_out("ucx").empty()) return {false, module().why_not, FallbackReason::not_built};
  const Viability hardware = probe_rdma();
  const bool told = support::variable("UCX_TLS").has_value();
  if (!hardware.viable && asked == Asked::automatically) return hardware;
  if (!hardware.viable && !told) {
    return {false, hardware.detail + "; set UCX_TLS to run it over TCP or shared memory", hardware.reason};
  }
  // UCX 1.13 loops for ever if it cannot pin its own buffers.
  const bool pins = hardware.viable && !reading_transports(support::variable("UCX_TLS").value_or("")).empty();
  if (const std::string why = too_little_to_pin(pinnable_bytes()); pins && !why.empty()) {
    return {false, why, FallbackReason::memlock};
  }
  if (module().table == nullptr) return {false, module().why_not, FallbackReason::library_missing};
  return table_of(module())->probe(asked);
}
static std::unique_ptr<Fabric> open() {
  const Viability viability = probe(Asked::by_name);
  if (!viability.viable) throw Error(ErrorCode::unsupported, "the ucx transport is off: " + viability.detail);
  return table_of(module())->open(&memory::device_runtime);
}

}  // namespace ucx

namespace libfabric {

static const support::Module& module() {
  static const support::Module loaded = support::load_module("libfabric");
  return loaded;
}
// Automatically it serves only NICs over which UCX has no hardware reads. FI_PROVIDER may be meant for another library,
// such as MPI.
static Viability probe(Asked asked) {
  if (!support::why_left_out("libfabric").empty()) return {false, module().why_not, FallbackReason::not_built};
  const Viability hardware = probe_libfabric_devices();
  if (!hardware.viable && asked == Asked::automatically) return hardware;
  const auto chosen = support::variable("FI_PROVIDER");
  const bool any = hardware.viable || probe_rdma().viable;
  if (!any && !chosen) {
    return {false, hardware.detail + ", nor another RDMA device; set FI_PROVIDER=tcp to run it over TCP",
            hardware.reason};
  }
  const bool pins = any && leaves_hardware_providers(chosen.value_or(""));
  if (const std::string why = too_little_to_pin(pinnable_bytes()); pins && !why.empty()) {
    return {false, why, FallbackReason::memlock};
  }
  if (module().table == nullptr) return {false, module().why_not, FallbackReason::library_missing};
  return table_of(module())->probe(asked);
}
static std::unique_ptr<Fabric> open() {
  const Viability viability = probe(Asked::by_name);
  if (!viability.viable) throw Error(ErrorCode::unsupported, "the libfabric transport is off: " + viability.detail);
  return table_of(module())->open(&memory::device_runtime);
}

}  // namespace libfabric

namespace tcp {
Viability probe(Asked);
std::unique_ptr<Fabric> open();
}  // namespace tcp

namespace loopback {
Viability probe(Asked);
std::unique_ptr<Fabric> open();
Viability probe_collective();
std::string collective_domain();
Bytes make_group_id();
std::unique_ptr<Collective> open_collective(const GroupSetup& setup);
}  // namespace loopback

namespace nccl {
#if SHARDWIRE_HAVE_NCCL
Viability probe();
std::string domain();
Bytes make_group_id();
std::unique_ptr<Collective> open(const GroupSetup& setup);
int device_of(void* communicator);
#else
[[noreturn]] static void refuse() {
  throw Error(ErrorCode::unsupported, "the nccl collective is off: " SHARDWIRE_NCCL_DETAIL);
}
static Viability probe() {
  return {false, SHARDWIRE_NCCL_DETAIL, FallbackReason::not_built};
}
static std::string domain() {
  refuse();
}
static Bytes make_group_id() {
  refuse();
}
static std::unique_ptr<Collective> open(const GroupSetup&) {
  refuse();
}
static int device_of(void*) {
  refuse();
}
#endif
}  // namespace nccl

namespace shm {
#if SHARDWIRE_HAVE_SHM
Viability probe(Asked);
std::unique_ptr<Fabric> open();
#else
static Viability probe(Asked) {
  return {false, SHARDWIRE_SHM_DETAIL, FallbackReason::not_built};
}
static std::unique_ptr<Fabric> open() {
  throw Error(ErrorCode::unsupported, "the shm transport is off: " SHARDWIRE_SHM_DETAIL);
}
#endif
}  // namespace shm

namespace {

// Messages within a process or a host bypass the network stack: separate messages pay off from a few kilobytes on.
constexpr MethodCost zcopy_within_host{.latency_seconds = 30e-6, .run_seconds = 1.2e-6, .bytes_per_second = 9e9};
constexpr MethodCost packed_within_host{.latency_seconds = 30e-6, .run_seconds = 60e-9, .bytes_per_second = 3.3e9};

constexpr std::array shm_costs{
    // Mapped memory is copied without a system call: never slower than a read by the kernel.
    BuiltInCost{Method::mapped, {.latency_seconds = 1e-6, .run_seconds = 15e-9, .bytes_per_second = 13e9}},
    // No hardware reads memory of another process: a system call does, which touches each run twice.
    BuiltInCost{Method::read, {.latency_seconds = 3e-6, .run_seconds = 250e-9, .bytes_per_second = 12e9}},
    BuiltInCost{Method::sieved_read, {.latency_seconds = 3e-6, .run_seconds = 15e-9, .bytes_per_second = 5.5e9}},
    BuiltInCost{Method::zcopy, zcopy_within_host},
    BuiltInCost{Method::packed, packed_within_host},
};
// A request and an answer inside libfabric for each run, on most networks that use it.
constexpr std::array libfabric_costs{
    BuiltInCost{Method::read, {.latency_seconds = 20e-6, .run_seconds = 1.5e-6, .bytes_per_second = 10e9}},
    BuiltInCost{Method::sieved_read, {.latency_seconds = 20e-6, .run_seconds = 15e-9, .bytes_per_second = 5e9}},
};
// Runs are ranges of one message that the kernel gathers and scatters: a run costs little, since it is no message.
constexpr std::array tcp_costs{
    BuiltInCost{Method::zcopy, {.latency_seconds = 50e-6, .run_seconds = 40e-9, .bytes_per_second = 6e9}},
    BuiltInCost{Method::packed, {.latency_seconds = 50e-6, .run_seconds = 30e-9, .bytes_per_second = 2.5e9}},
};
constexpr std::array loopback_costs{
    BuiltInCost{Method::zcopy, zcopy_within_host},
    BuiltInCost{Method::packed, packed_within_host},
};

constexpr std::array table{
    Transport{"shm", Reach::host, {.map = 1, .read = 4}, shm_costs, shm::probe, shm::open},
    Transport{"ucx", Reach::network, {.read = 2, .message = 6}, {}, ucx::probe, ucx::open},
    Transport{"libfabric", Reach::network, {.read = 3}, libfabric_costs, libfabric::probe, libfabric::open},
    Transport{"tcp", Reach::network, {.message = 5}, tcp_costs, tcp::probe, tcp::open},
    Transport{"loopback",
              Reach::process,
              {.map = 1, .read = 1, .message = 1},
              loopback_costs,
              loopback::probe,
              loopback::open},
};
constexpr std::array collectives{
    CollectiveTransport{"nccl", MemoryKind::cuda, false, nccl::probe, nccl::domain, nccl::make_group_id, nccl::open,
                        nccl::device_of},
    CollectiveTransport{"loopback", MemoryKind::host, true, loopback::probe_collective, loopback::collective_domain,
                        loopback::make_group_id, loopback::open_collective, nullptr},
};

[[noreturn]] void refuse_auto(const std::string& reasons) {
  throw Error(ErrorCode::unsupported, fmt::format("no transport that reaches other processes is viable{}", reasons));
}

std::vector<const Transport*> select_automatically() {
  std::vector<const Transport*> selected;
  std::string reasons;
  for (const Transport& transport : table) {
    // Never selected by "auto": a job that gets a one-process transport would wait for peers for ever.
    if (transport.reach == Reach::process) continue;
    const Viability viability = transport.probe(Asked::automatically);
    if (viability.viable) {
      selected.push_back(&transport);
    } else {
      reasons += fmt::format("; {}: {}", transport.name, viability.detail);
    }
  }
  if (selected.empty()) refuse_auto(reasons);
  return selected;
}

}  // namespace

std::span<const Transport> registered() {
  return table;
}

std::span<const CollectiveTransport> registered_collectives() {
  return collectives;
}

const Transport& choose(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Transport& transport : table) {
    if (transport.name != name) {
      known.push_back(transport.name);
      continue;
    }
    const Viability viability = transport.probe(Asked::by_name);
    if (viability.viable) return transport;
    throw Error(ErrorCode::unsupported, fmt::format("transport {} is off: {}", name, viability.detail));
  }
  for (const CollectiveTransport& one : collectives) {
    if (one.name != name) continue;
    const char* const kind = one.memory == MemoryKind::cuda ? "device" : "host";
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} is a collective: it moves {} memory in exchanges of all ranks, and nothing else ({}: {})", name,
                    kind, one.probe().viable ? "it works here" : "it is off here", one.probe().detail));
  }
  throw Error(ErrorCode::unsupported, fmt::format("there is no transport named \"{}\"{} (known: {})", name,
                                                  support::suggestion(name, known), fmt::join(known, ", ")));
}

std::vector<const Transport*> select(std::string_view names) {
  if (names == automatic) return select_automatically();
  std::vector<const Transport*> selected;
  while (true) {
    const std::size_t comma = names.find(',');
    selected.push_back(&choose(names.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    names.remove_prefix(comma + 1);
  }
  std::ranges::sort(selected);  // pointers into the table: this restores its order
  selected.erase(std::unique(selected.begin(), selected.end()), selected.end());
  return selected;
}

}  // namespace shardwire::transport
