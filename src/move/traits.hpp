// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "shardwire/costs.hpp"

// The properties of methods that other layers ask for. They name a method only where a user has named it.
namespace shardwire::move {

/// The means by which bytes come to this process.
enum class Carrier : std::uint8_t {
  process,   ///< nothing: they are in this process
  mapping,   ///< a fabric that maps the source's memory
  reads,     ///< a fabric that reads it, by hardware or the kernel
  messages,  ///< a fabric that carries messages of the source
  rounds,    ///< a group
};

struct MethodTraits {
  Method method;
  std::string_view name;
  Carrier carrier;
  bool staged;      ///< bytes pass a slot here, and with messages one at the source as well
  MethodCost cost;  ///< built in, for host memory over an unknown network; known transports have costs of their own
};

/// One line per method, in the order of the enumerators. Costs: seconds until the first byte, seconds of a run, bytes per second.
inline constexpr std::array<MethodTraits, method_count> method_table{{
    {Method::local, "local", Carrier::process, false, {1e-6, 12e-9, 10e9}},
    {Method::mapped, "mapped", Carrier::mapping, false, {1e-6, 15e-9, 9e9}},
    {Method::read, "read", Carrier::reads, false, {3e-6, 250e-9, 20e9}},
    {Method::sieved_read, "sieved_read", Carrier::reads, true, {3e-6, 15e-9, 7e9}},
    {Method::zcopy, "zcopy", Carrier::messages, false, {60e-6, 15e-6, 5e9}},
    {Method::packed, "packed", Carrier::messages, true, {60e-6, 30e-9, 2.5e9}},
    {Method::collective, "collective", Carrier::rounds, true, {100e-6, 30e-9, 2.5e9}},
}};
static_assert(std::ranges::equal(method_table, std::array<int, method_count>{0, 1, 2, 3, 4, 5, 6}, {},
                                 [](const MethodTraits& one) { return static_cast<int>(one.method); }));

constexpr const MethodTraits& traits_of(Method method) {
  return method_table[static_cast<std::size_t>(method)];
}
constexpr Carrier carrier_of(Method method) {
  return traits_of(method).carrier;
}
/// Calls visit(Method) for each method with this carrier.
template <typename Visit>
constexpr void each_method_by(Carrier by, Visit visit) {
  for (const MethodTraits& one : method_table) {
    if (one.carrier == by) visit(one.method);
  }
}

}  // namespace shardwire::move
