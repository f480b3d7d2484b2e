// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange/context.hpp"
#include "exchange/group.hpp"
#include "shardwire/session.hpp"

namespace shardwire {

/// See Session::exchange. Ownership: borrows all arguments.
ExchangeResult exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options,
                        const ExchangeSetup& setup, const ExchangeContext& context);

}  // namespace shardwire
