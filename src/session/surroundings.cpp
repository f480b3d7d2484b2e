// SPDX-License-Identifier: Apache-2.0
#include "session/surroundings.hpp"

#include "move/tuning.hpp"
#include "runtime/uv_loop.hpp"
#include "support/boot_id.hpp"

namespace shardwire::detail {

Surroundings surroundings_of_process() {
  return {.loop = std::make_shared<UvLoop>(),
          .open_fabrics =
              [](const Settings& settings, const Fabrics::LeftOut& left_out) {
                return std::make_shared<Fabrics>(settings.transport, settings.costs.tuning().tcp.streams, left_out);
              },
          // By the kernel's boot; the possible memory access between its processes is probed later.
          .host = support::boot_id(),
          .load_tls = load_tls};
}

}  // namespace shardwire::detail
