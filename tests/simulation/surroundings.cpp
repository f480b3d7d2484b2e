// SPDX-License-Identifier: Apache-2.0
#include "surroundings.hpp"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "groups.hpp"
#include "loop.hpp"
#include "paths/fabrics.hpp"

namespace shardwire::simulation {

shardwire::detail::Surroundings surroundings_of(Process& process, FabricNetwork& fabrics, std::uint64_t seed,
                                                std::span<const FabricKind> kinds) {
  const auto loop = std::make_shared<SimulatedLoop>(fabrics.network(), process, seed);
  return {.loop = loop,
          .open_fabrics =
              [&process, &fabrics, wanted = std::vector(kinds.begin(), kinds.end())](const Settings&,
                                                                                     const Fabrics::LeftOut&) {
                std::vector<Fabrics::Opened> opened;
                for (const FabricKind kind : wanted) {
                  opened.push_back({&FabricNetwork::row(kind), fabrics.open(process, kind)});
                }
                return std::make_shared<Fabrics>(std::move(opened));
              },
          .collectives = GroupNetwork::rows(),
          .host = fmt::format("host {}", process.host()),
          // The loop is that of the session, which starts it.
          .start_thread = [weak = std::weak_ptr(loop)](
                              std::function<void()> body) { return weak.lock()->start_thread(std::move(body)); }};
}

}  // namespace shardwire::simulation
