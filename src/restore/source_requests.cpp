// SPDX-License-Identifier: Apache-2.0
#include "restore/source_requests.hpp"

#include <fmt/core.h>

#include <utility>

#include "restore/callbacks.hpp"

namespace shardwire::restore {

namespace {

// Null: the answer is another one.
const std::vector<wire::RequestedBox>* corrupt_blocks(const wire::Message& message) {
  const auto* failure = std::get_if<wire::Failure>(&message);
  const bool corrupt = failure != nullptr && failure->code == ErrorCode::corrupt && !failure->parts.empty();
  return corrupt ? &failure->parts : nullptr;
}

}  // namespace

SourceRequests::SourceRequests(const SourceContext& context, const Binding& binding, std::string from,
                               Callbacks::Failed failed)
    : context_(context),
      binding_(binding),
      from_(std::move(from)),
      count_{.next = context.first_request()},
      callbacks_(std::move(failed)) {
}

void SourceRequests::watch(std::function<void(const Error& reason)> ended) {
  watcher_ = binding_.link->watch(callbacks_.wrap(std::move(ended)));
}

// --- the lease ---

void SourceRequests::lease_own() {
  try {
    for (const std::uint32_t tensor : binding_.tensors) binding_.own->require_still_there(tensor);
  } catch (const Error& error) {
    throw Error(error.code(), error.what(), std::vector<Rank>{rank()});
  }
  lease_ = context_.lease_own(*binding_.own);
}

void SourceRequests::ask_for_lease(std::function<void()> granted) {
  wire::Lease lease{count_.next++, from_, binding_.record.generation, {}};
  for (const std::uint32_t tensor : binding_.tensors) lease.ranges.push_back({tensor, {}});
  auto arrived = callbacks_.count(count_.unanswered, [this, granted = std::move(granted)](wire::Message& message) {
    const wire::Leased& leased = expect<wire::Leased>(message, rank());
    lease_ = leased.lease;
    if (leased.step != binding_.record.step) {
      throw Error(ErrorCode::transport_failed,
                  fmt::format("source rank {} publishes step {} of '{}', but has announced step {}", to_int(rank()),
                              leased.step, from_, binding_.record.step),
                  std::vector<Rank>{rank()});
    }
    was_leased_ = true;
    granted();
  });
  binding_.link->request(lease.request, lease,
                         [arrived = std::move(arrived), token = callbacks_.token(),
                          link = std::weak_ptr<SourceLink>(binding_.link)](wire::Message& message) mutable {
                           const auto* reply = std::get_if<wire::Leased>(&message);
                           if (!token.expired() || reply == nullptr) return arrived(message);
                           // Too late to be used, but the source must not keep the memory for it.
                           if (const auto still = link.lock()) still->post(wire::Release{0, reply->lease});
                         });
}

void SourceRequests::give_back() {
  if (watcher_ != 0) binding_.link->unwatch(std::exchange(watcher_, 0));
  const std::uint64_t lease = std::exchange(lease_, 0);
  if (lease == 0) return;
  if (binding_.is_own()) {
    context_.release_own(lease);
  } else {  // not awaited: it only lets the source free the memory
    binding_.link->post(wire::Release{count_.next++, lease});
  }
}

void SourceRequests::end() {
  callbacks_.end();
  count_.unanswered = 0;
}

// --- while it is read ---

void SourceRequests::ask_if_live(std::function<void()> then) {
  if (count_.unanswered > 0 || callbacks_.ended()) return;
  const std::uint64_t number = count_.next++;
  auto answered = callbacks_.count(count_.unanswered, [this, then = std::move(then)](wire::Message& message) {
    if (const auto* confirmed = std::get_if<wire::Released>(&message)) {
      require_intact(confirmed->intact);
    } else {
      expect<wire::Digests>(message, rank());
    }
    then();
  });
  if (lease_ != 0) {  // digests of nothing: the source answers any request under the lease
    binding_.link->request(number, wire::DigestRequest{number, lease_, {}}, std::move(answered));
  } else {
    binding_.link->request(number, wire::Confirm{number, from_, binding_.record.generation}, std::move(answered));
  }
}

void SourceRequests::ask_for_digests(std::vector<wire::RequestedBox> boxes, Digests then, Corrupt corrupt) {
  if (callbacks_.ended()) return;
  const wire::DigestRequest request{count_.next++, lease_, std::move(boxes)};
  binding_.link->request(request.request, request,
                         callbacks_.count(count_.unanswered, [this, then = std::move(then),
                                                              corrupt = std::move(corrupt)](wire::Message& message) {
                           if (const auto* blocks = corrupt_blocks(message); blocks != nullptr && corrupt) {
                             return corrupt(*blocks);
                           }
                           then(expect<wire::Digests>(message, rank()).digests);
                         }));
}

void SourceRequests::ask_for_blocks(std::vector<wire::BlockRequest::Range> ranges, Digests then) {
  if (callbacks_.ended()) return;
  std::size_t blocks = 0;
  for (const wire::BlockRequest::Range& range : ranges) blocks += range.count;
  const wire::BlockRequest request{count_.next++, lease_, std::move(ranges)};
  binding_.link->request(
      request.request, request,
      callbacks_.count(count_.unanswered, [this, blocks, then = std::move(then)](wire::Message& message) {
        const auto& digests = expect<wire::Digests>(message, rank()).digests;
        if (digests.size() != blocks) {
          throw Error(
              ErrorCode::transport_failed,
              fmt::format("source rank {} sent {} digests of {} blocks", to_int(rank()), digests.size(), blocks),
              std::vector<Rank>{rank()});
        }
        then(digests);
      }));
}

void SourceRequests::ask_for_payload(wire::PackRequest request, std::function<void(const std::string& why)> aborted,
                                     Corrupt corrupt) {
  if (callbacks_.ended()) return;
  request.lease = lease_;
  if (lease_ == 0) {
    request.publication = from_;
    request.generation = binding_.record.generation;
  }
  // On success the payload arrives over the fabric, without this answer.
  binding_.link->request(
      request.request, request,
      callbacks_.wrap([this, aborted = std::move(aborted), corrupt = std::move(corrupt)](wire::Message& message) {
        if (const auto* blocks = corrupt_blocks(message); blocks != nullptr && corrupt) {
          return corrupt(*blocks);
        }
        const auto* failure = std::get_if<wire::Failure>(&message);
        const FabricChannel* channel = binding_.message_channel();
        const bool cut_here = channel != nullptr && channel->aborted;
        // The source answers, so only its connection for payloads is lost.
        if (failure != nullptr && (cut_here || failure->code == ErrorCode::peer_lost)) {
          return aborted(failure->message);
        }
        expect<wire::Goodbye>(message, rank());
      }));
}

// --- the check after the last byte ---

void SourceRequests::read_generation(std::function<void(bool live)> then) {
  read_word(binding_.word,
            callbacks_.count(count_.unanswered, [then = std::move(then), generation = binding_.record.generation](
                                                    const transport::Outcome& fault, std::uint64_t word) {
              then(!fault && word == generation);
            }));
}

void SourceRequests::confirm(std::function<void()> intact) {
  const std::uint64_t lease = std::exchange(lease_, 0);
  if (binding_.is_own()) {
    require_intact(context_.release_own(lease));
    return intact();
  }
  const std::uint64_t number = count_.next++;
  auto answered = callbacks_.count(count_.unanswered, [this, intact = std::move(intact)](wire::Message& message) {
    require_intact(expect<wire::Released>(message, rank()).intact);
    intact();
  });
  if (lease == 0) {
    binding_.link->request(number, wire::Confirm{number, from_, binding_.record.generation}, std::move(answered));
  } else {
    binding_.link->request(number, wire::Release{number, lease}, std::move(answered));
  }
}

void SourceRequests::require_intact(bool intact) const {
  if (intact) return;
  throw Error(ErrorCode::withdrawn,
              fmt::format("source rank {} withdrew step {} of '{}' while it was being read", to_int(rank()),
                          binding_.record.step, from_),
              std::vector<Rank>{rank()});
}

}  // namespace shardwire::restore
