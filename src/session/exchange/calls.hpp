// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "session/exchange/group.hpp"
#include "session/exchange/news.hpp"
#include "session/grouped_handover.hpp"
#include "session/tensor_places.hpp"
#include "shardwire/session.hpp"

namespace shardwire {

/// What an exchange is made of: calls of one session, from one thread.
struct ExchangeCalls {
  int member = 0;
  std::uint64_t number = 0;  ///< which exchange of this session, counted on every member alike
  std::function<std::vector<Bytes>(const std::string& name, Bytes value, Duration timeout)> gather;
  /// Refuses wanted memory that is const, or overlaps itself or what else this member publishes. Waits for its events; says
  /// where it lies.
  std::function<TensorPlaces(const Catalog& wanted)> check_destination;
  /// Where device memory is written.
  CopyAndWait copy;
  std::function<Publication(const Catalog& held, PublishOptions options)> publish;
  /// Without a look at aliasing. `grouped`: takes what comes from other members; may be null.
  std::function<Restore(const Catalog& wanted, RestoreOptions options, std::shared_ptr<GroupedHandover> grouped)>
      restore;
  /// Runs it on the session's thread.
  std::function<void(std::function<void()>)> post;
  /// Cheap enough to be asked often.
  std::function<ExchangeNews()> news;
  /// Makes this member's going no further news for the others. Throws nothing.
  std::function<void()> give_up;
  /// What was asked for here: by the options, else by SHARDWIRE_WAY.
  std::optional<Way> way{};
  /// Rounds may be taken where nobody has asked for them.
  bool rounds_unasked = false;
  /// What the session keeps between exchanges.
  KeptGroup* kept = nullptr;
};

}  // namespace shardwire
