// SPDX-License-Identifier: Apache-2.0
#include "control/tls.hpp"

#include "control/tls_config.hpp"
#include "support/module.hpp"

namespace shardwire {

const TlsModule* load_tls(std::string& why_not) {
  if (SHARDWIRE_HAVE_TLS == 0) {
    why_not = SHARDWIRE_TLS_DETAIL;
    return nullptr;
  }
  const support::Module module = support::load_module("tls");
  why_not = module.why_not;
  return static_cast<const TlsModule*>(module.table);
}

}  // namespace shardwire
