// SPDX-License-Identifier: Apache-2.0
#include <array>

#include <fmt/core.h>

#include "transport/config.hpp"
#include "transport/transport.hpp"

namespace shardwire::transport {

#if SHARDWIRE_HAVE_UCX
namespace ucx {
Viability probe();
std::unique_ptr<Fabric> open();
}  // namespace ucx
#else
// A transport that is not in this build keeps its line, so that people who ask for it are told why.
namespace ucx {
static Viability probe() {
  return {false, SHARDWIRE_UCX_DETAIL};
}
static std::unique_ptr<Fabric> open() {
  throw Error(ErrorCode::unsupported, std::string("the ucx transport is not in this build: ") + SHARDWIRE_UCX_DETAIL);
}
}  // namespace ucx
#endif

namespace loopback {
Viability probe();
std::unique_ptr<Fabric> open();
}  // namespace loopback

namespace {

constexpr std::array table{
    Transport{"ucx", ucx::probe, ucx::open},
    Transport{"loopback", loopback::probe, loopback::open},
};

// Loopback joins threads of one process: a job that was given it unasked would wait for peers for ever.
bool reaches_other_processes(const Transport& transport) {
  return transport.name != "loopback";
}

[[noreturn]] void refuse_auto(const std::string& reasons) {
  throw Error(ErrorCode::unsupported, fmt::format("no transport that reaches other processes is viable{}", reasons));
}

const Transport& choose_automatically() {
  std::string reasons;
  for (const Transport& transport : table) {
    if (!reaches_other_processes(transport)) continue;
    const Viability viability = transport.probe();
    if (viability.viable) return transport;
    reasons += fmt::format("; {}: {}", transport.name, viability.detail);
  }
  refuse_auto(reasons);
}

}  // namespace

std::span<const Transport> registered() {
  return table;
}

const Transport& choose(std::string_view name) {
  if (name == "auto") return choose_automatically();
  std::string known;
  for (const Transport& transport : table) {
    if (transport.name != name) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", transport.name);
      continue;
    }
    const Viability viability = transport.probe();
    if (viability.viable) return transport;
    throw Error(ErrorCode::unsupported, fmt::format("transport {} is off: {}", name, viability.detail));
  }
  throw Error(ErrorCode::unsupported, fmt::format("there is no transport named \"{}\" (known: {})", name, known));
}

}  // namespace shardwire::transport
