// SPDX-License-Identifier: Apache-2.0
#include "control/tls.hpp"

#include "support/module.hpp"

namespace shardwire {

const TlsModule* load_tls(std::string& why_not) {
  const support::Module module = support::load_module("tls");
  why_not = module.why_not;
  return static_cast<const TlsModule*>(module.table);
}

}  // namespace shardwire
