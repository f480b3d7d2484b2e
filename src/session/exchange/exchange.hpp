// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "session/exchange/calls.hpp"
#include "shardwire/session.hpp"

namespace shardwire {

/// See Session::exchange.
ExchangeResult exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options,
                        const ExchangeCalls& calls);

}  // namespace shardwire
