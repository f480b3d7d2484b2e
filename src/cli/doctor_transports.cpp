// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "cli/command.hpp"
#include "cli/doctor_host.hpp"
#include "cli/job_options.hpp"
#include "shardwire/error.hpp"
#include "support/nearest.hpp"
#include "transport/collective.hpp"
#include "transport/transport.hpp"

namespace shardwire::cli {
namespace {

using transport::Asked;

std::vector<std::string_view> names_in(std::string_view list) {
  std::vector<std::string_view> names;
  for (std::size_t comma; (comma = list.find(',')) != std::string_view::npos; list.remove_prefix(comma + 1)) {
    names.push_back(list.substr(0, comma));
  }
  names.push_back(list);
  const auto known = transport::registered();
  for (const std::string_view name : names) {
    if (std::ranges::find(known, name, &transport::Transport::name) != known.end()) continue;
    throw UsageError(
        fmt::format("--transport: '{}' is unknown{}", name, support::known_words(name, transport_names())));
  }
  return names;
}

// The probe is only a claim; opening the transport proves it.
void open(const transport::Transport& row, TransportFinding& finding) {
  try {
    finding.version = row.open()->version();
  } catch (const Error& error) {
    finding.viable = finding.chosen = false;
    finding.detail = fmt::format("cannot be opened: {}", error.what());
  }
}

}  // namespace

std::vector<TransportFinding> find_transports(std::string_view names) {
  const bool automatic = names == transport::automatic;
  const std::vector<std::string_view> named = automatic ? std::vector<std::string_view>() : names_in(names);
  std::vector<TransportFinding> findings;
  for (const transport::Transport& row : transport::registered()) {
    const transport::Viability unasked = row.probe(Asked::automatically);
    const transport::Viability viability = unasked.viable ? unasked : row.probe(Asked::by_name);
    // "auto" selects transports that reach other processes.
    const bool asked =
        automatic ? unasked.viable && row.reach != Reach::process : std::ranges::find(named, row.name) != named.end();
    TransportFinding finding{std::string(row.name),     row.reach, viability.viable,
                             viability.viable && asked, {},        viability.detail};
    if (finding.viable && automatic && !unasked.viable) finding.detail = "only if it is named: " + unasked.detail;
    if (finding.viable) open(row, finding);
    findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<CollectiveFinding> find_collectives() {
  std::vector<CollectiveFinding> findings;
  for (const transport::CollectiveTransport& row : transport::registered_collectives()) {
    const transport::Viability viability = row.probe();
    findings.push_back({std::string(row.name), row.memory == MemoryKind::cuda ? "device" : "host", viability.viable,
                        viability.detail});
  }
  return findings;
}

}  // namespace shardwire::cli
