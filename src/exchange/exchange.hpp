// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange/host.hpp"
#include "shardwire/session.hpp"

namespace shardwire {

/// See Session::exchange. Ownership: borrows all arguments.
ExchangeResult exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options,
                        const ExchangeSetup& setup, ExchangeHost& host);

}  // namespace shardwire
