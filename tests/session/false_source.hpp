// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "control/connection.hpp"
#include "runtime/uv_loop.hpp"
#include "serve/publication.hpp"
#include "transport/transport.hpp"
#include "wire/messages.hpp"

namespace shardwire::test {

/// Memory that a restore may write, between guard bytes that it must not write.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t bytes) : all_(2 * guard_bytes + bytes, untouched) {}
  std::byte* data() { return all_.data() + guard_bytes; }
  [[nodiscard]] bool nothing_beside_is_written() const {
    const std::span<const std::byte> all(all_);
    const auto is_untouched = [](std::byte one) { return one == untouched; };
    return std::ranges::all_of(all.first(guard_bytes), is_untouched) &&
           std::ranges::all_of(all.last(guard_bytes), is_untouched);
  }

 private:
  static constexpr std::size_t guard_bytes = 1 << 20;
  static constexpr std::byte untouched{0x77};
  std::vector<std::byte> all_;
};

/// Member 1 of 2, which publishes generation 1 of "state" and serves it by hand: all its messages are correct except
/// the test's answers to `bind`, to requests for bytes and digests, and to leases if there is one.
class FalseSource {
 public:
  /// Answers one Bind, on the loop's thread.
  using OnBind = std::function<void(Connection& reader, const wire::Bind& asked)>;
  using AnswerPack = std::function<void(Connection& reader, const wire::PackRequest& asked)>;
  using AnswerLease = std::function<void(Connection& reader, const wire::Lease& asked)>;
  using AnswerDigests = std::function<void(Connection& reader, const wire::DigestRequest& asked)>;

  /// Joins the job of the rendezvous at `port`; the publication is announced when this returns.
  FalseSource(std::uint16_t port, const Catalog& held)
      : described_(describe(held)), layout_rank_(to_int(held.layout_rank())) {
    identity_.hello.rank = 1;
    identity_.hello.world_size = 2;
    identity_.hello.incarnation = 4711;
    std::promise<void> joined;
    loop_.call([&] {
      const auto incoming = [this](const AcceptedStream& open) { accept(open); };
      network_ = loop_.listen({"127.0.0.1", 0}, incoming);
      local_ = loop_.listen_local(local_name(), incoming);
      ask_who_is_there(port, joined);
    });
    joined.get_future().get();
  }
  ~FalseSource() {
    loop_.call([&] {
      rendezvous_->drop();
      for (const auto& one : readers_) one->drop();
      rendezvous_.reset();
      readers_.clear();
      sockets_.clear();
      network_.reset();
      local_.reset();
    });
  }
  FalseSource(const FalseSource&) = delete;
  FalseSource& operator=(const FalseSource&) = delete;

  void answer_with(OnBind answer) {
    loop_.call([&] { answer_ = std::move(answer); });
  }
  void answer_requests_with(AnswerPack pack, AnswerDigests digests) {
    loop_.call([&] {
      answer_pack_ = std::move(pack);
      answer_digests_ = std::move(digests);
    });
  }
  void answer_leases_with(AnswerLease answer) {
    loop_.call([&] { answer_lease_ = std::move(answer); });
  }
  Loop& loop() { return loop_; }
  /// Number of bind requests received.
  [[nodiscard]] int binds() {
    return loop_.call([&] { return binds_; });
  }
  /// The sockets of a token, in the order of their indexes. Loop thread only.
  std::vector<transport::OpenSocket> take_sockets(std::uint64_t token) {
    std::vector<transport::OpenSocket> taken;
    for (auto& [index, socket] : sockets_[token]) taken.push_back(std::move(socket));
    sockets_.erase(token);
    return taken;
  }

 private:
  [[nodiscard]] static std::string local_name() { return "shardwire-test-" + std::to_string(::getpid()); }

  // Joins once to learn the other's host and fabrics, which this member then announces as its own, and then
  // permanently.
  void ask_who_is_there(std::uint16_t port, std::promise<void>& joined) {
    Connection::Events events;
    events.ready = [this, port, &joined](Connection& connection) {
      identity_.hello.host = connection.peer().host;
      identity_.hello.fabrics = connection.peer().fabrics;
      const auto keep = std::exchange(rendezvous_, nullptr);
      keep->drop();
      join(port, joined);
    };
    events.message = [](Connection&, wire::Message&) {};
    rendezvous_ = Connection::connect(loop_, {"127.0.0.1", port}, identity_, std::move(events));
  }
  void join(std::uint16_t port, std::promise<void>& joined) {
    Connection::Events events;
    events.ready = [this](Connection& connection) {
      connection.send(wire::Join{{.rank = 1,
                                  .incarnation = identity_.hello.incarnation,
                                  .host = identity_.hello.host,
                                  .address = "127.0.0.1",
                                  .port = network_->address().port,
                                  .local_path = local_name()}});
    };
    events.message = [this, &joined](Connection& connection, wire::Message& message) {
      if (!std::holds_alternative<wire::Joined>(message)) return;
      connection.send(wire::Publish{"state",
                                    {.member = 1,
                                     .layout_rank = layout_rank_,
                                     .generation = 1,
                                     .manifest = described_.manifest_digest,
                                     .values = described_.values_digest}});
      joined.set_value();
    };
    rendezvous_ = Connection::connect(loop_, {"127.0.0.1", port}, identity_, std::move(events));
  }
  void accept(const AcceptedStream& open) {
    Connection::Events events;
    events.message = [this](Connection& reader, wire::Message& message) {
      std::visit([&](const auto& one) { serve(reader, one); }, message);
    };
    events.closed = [this](Connection& reader, const Error&, bool) {
      std::erase_if(readers_, [&](const auto& one) { return one.get() == &reader; });
    };
    readers_.push_back(Connection::accept(loop_, open, identity_, std::move(events)));
  }
  void serve(Connection& reader, const wire::ManifestRequest& asked) {
    reader.send(wire::ManifestReply{asked.digest, described_.encoded_manifest});
  }
  void serve(Connection& reader, const wire::ValuesRequest& asked) {
    reader.send(wire::ValuesReply{asked.digest, described_.encoded_values});
  }
  void serve(Connection& reader, const wire::Lease& asked) {
    if (answer_lease_) return answer_lease_(reader, asked);
    reader.send(wire::Leased{asked.request, 1});
  }
  void serve(Connection& reader, const wire::Release& asked) { reader.send(wire::Released{asked.request, true}); }
  void serve(Connection& reader, const wire::Confirm& asked) { reader.send(wire::Released{asked.request, true}); }
  void serve(Connection& reader, const wire::Bind& asked) {
    ++binds_;
    answer_(reader, asked);
  }
  void serve(Connection& reader, const wire::PackRequest& asked) {
    if (answer_pack_) answer_pack_(reader, asked);
  }
  void serve(Connection& reader, const wire::DigestRequest& asked) {
    if (answer_digests_) answer_digests_(reader, asked);
  }
  void serve(Connection& reader, const wire::Attach& attach) {
    reader.send(wire::Attached{});
    auto [socket, encryption] = reader.release();
    sockets_[attach.token][attach.index] = {std::move(socket), std::move(encryption)};
    const auto keep = reader.shared_from_this();
    std::erase_if(readers_, [&](const auto& one) { return one.get() == &reader; });
  }
  template <typename Other>
  void serve(Connection&, const Other&) {}

  DescribedCatalog described_;
  std::int32_t layout_rank_;
  Identity identity_;
  UvLoop loop_;
  std::unique_ptr<Listener> network_;  // loop thread only, like all members below
  std::unique_ptr<Listener> local_;
  std::shared_ptr<Connection> rendezvous_;            // owners: this and its own callbacks
  std::vector<std::shared_ptr<Connection>> readers_;  // owners: this and its own callbacks
  std::map<std::uint64_t, std::map<std::uint8_t, transport::OpenSocket>> sockets_;  // by token and index
  OnBind answer_;
  AnswerPack answer_pack_;
  AnswerDigests answer_digests_;
  AnswerLease answer_lease_;
  int binds_ = 0;
};

}  // namespace shardwire::test
