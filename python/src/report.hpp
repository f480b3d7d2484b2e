// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convert.hpp"

namespace shardwire::python {

nb::object to_python(const RestoreReport& report);
nb::object to_python(const ExchangeResult& result);
nb::object to_python(const SessionUsage& usage);
nb::object to_python(const PeerPath& path);

}  // namespace shardwire::python
