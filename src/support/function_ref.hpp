// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace shardwire::support {

template <typename Signature>
class FunctionRef;

/// Borrows a callable for the length of a call: replaces std::function as a parameter type, without its allocation.
template <typename Result, typename... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <typename Callable>
  requires std::is_invocable_r_v<Result, const Callable&, Arguments...> FunctionRef(const Callable& callable)
      : callable_(std::addressof(callable)), call_([](const void* target, Arguments... arguments) -> Result {
          return (*static_cast<const Callable*>(target))(std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const { return call_(callable_, std::forward<Arguments>(arguments)...); }

 private:
  const void* callable_;
  Result (*call_)(const void*, Arguments...);
};

}  // namespace shardwire::support
