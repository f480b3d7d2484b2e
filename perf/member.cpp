// SPDX-License-Identifier: Apache-2.0
#include "perf/member.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>

#include "case/values.hpp"
#include "perf/copy.hpp"
#include "perf/tag_loop.hpp"
#include "shardwire/session.hpp"

namespace shardwire::perf {

namespace {

using namespace std::chrono_literals;

constexpr auto patience = 120s;
constexpr ByteCount alignment = 64;
constexpr std::size_t message_sizes_mib[] = {1, 4, 16};

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / 1ns;
}

// What one place of one side holds or wants, in one arena.
class Shard {
 public:
  Shard(Session& session, const JobLayout& side, Rank place) : place_(place) {
    for (const Section& section : side.sections) {
      if (std::binary_search(section.ranks.begin(), section.ranks.end(), place)) manifest_ = section.manifest;
    }
    if (!manifest_) return;
    catalog_.emplace(place, side.ranks);
    std::vector<ByteCount> offsets;
    ByteCount size = 0;
    for (const TensorLayout& tensor : manifest_->tensors) {
      const auto bytes = bytes_of(tensor);
      offsets.push_back(size);
      size += (bytes + alignment - 1) / alignment * alignment;
      payload_bytes_ += bytes;
    }
    arena_ = session.allocate(size);
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      const TensorLayout& tensor = manifest_->tensors[i];
      starts_.push_back(arena_.data() + offsets[i]);
      catalog_->add(tensor.spec, tensor.layout, View{.data = bytes_of(tensor) > 0 ? starts_.back() : nullptr});
    }
  }

  [[nodiscard]] bool takes_part() const { return manifest_ != nullptr; }
  /// Requires: takes_part().
  [[nodiscard]] const Catalog& catalog() const { return *catalog_; }
  [[nodiscard]] std::span<std::byte> payload() const {
    return arena_.bytes().first(static_cast<std::size_t>(payload_bytes_));
  }

  void fill() const {
    each([](const ElementValues& values, const PlacedBox& placed, std::byte* at) { values.fill(placed, at); });
  }
  void spoil() const {
    each([](const ElementValues& values, const PlacedBox& placed, std::byte* at) {
      values.fill_complement(placed, at);
    });
  }
  /// Elements compared. Errors: throws std::runtime_error naming the first that is wrong.
  [[nodiscard]] ElementCount check() const {
    ValueCheck check;
    each([&](const ElementValues& values, const PlacedBox& placed, std::byte* at) { values.check(placed, at, check); });
    if (check.first) throw std::runtime_error(to_string(*check.first));
    return check.elements;
  }

 private:
  [[nodiscard]] ByteCount bytes_of(const TensorLayout& tensor) const {
    return static_cast<ByteCount>(tensor.layout.local_elements(tensor.spec.shape, place_)) *
           item_size(tensor.spec.dtype);
  }
  template <typename Visit>
  void each(Visit visit) const {
    for (std::size_t i = 0; i < starts_.size(); ++i) {
      const TensorLayout& tensor = manifest_->tensors[i];
      const ElementValues values(tensor.spec, 0);
      for (const PlacedBox& placed : tensor.layout.boxes_of(tensor.spec.shape, place_))
        visit(values, placed, starts_[i]);
    }
  }

  Rank place_;
  std::optional<Catalog> catalog_;
  std::shared_ptr<const Manifest> manifest_;  // owners: as in Section; null: nothing held or wanted
  Arena arena_;
  std::vector<std::byte*> starts_;
  ByteCount payload_bytes_ = 0;
};

Session join(const Comparison& comparison, int member) {
  if (comparison.tcp) {
    ::setenv("UCX_TLS", "tcp", 1);
    ::setenv("UCX_NET_DEVICES", "lo", 1);
  }
  Bootstrap bootstrap;
  bootstrap.rank = member;
  bootstrap.world_size = comparison.members();
  bootstrap.port = comparison.port;
  SessionOptions options;
  options.transport = "ucx";
  return Session::join(std::move(bootstrap), options);
}

class Member {
 public:
  Member(const Comparison& comparison, Board& board, int member)
      : comparison_(comparison),
        board_(board),
        member_(member),
        facts_(board.facts[static_cast<std::size_t>(member)]),
        session_(join(comparison, member)),
        // A place past the last one holds or wants nothing.
        held_(session_, comparison.job.source.layout, Rank{member}),
        wanted_(session_, comparison.job.target.layout, Rank{comparison.tcp ? member - sources() : member}) {}

  void run() {
    held_.fill();
    wanted_.spoil();
    Publication publication;
    if (held_.takes_part()) publication = session_.publish(held_.catalog());
    std::vector<std::function<void(int)>> turns = comparison_.tcp ? tag_turns() : copy_turns();
    turns.emplace_back([this](int repeat) { restore(repeat); });
    for (int repeat = 0; repeat <= comparison_.repeats; ++repeat) {
      for (std::size_t turn = 0; turn < turns.size(); ++turn) {
        Span& span = board_.spans[turn][static_cast<std::size_t>(repeat)][static_cast<std::size_t>(member_)];
        board_.barrier.wait();
        span.begin_ns = now_ns();
        turns[turn](repeat);
        span.end_ns = now_ns();
      }
    }
    board_.barrier.wait();
    facts_.elements = static_cast<std::uint64_t>(wanted_.check());
    if (member_ == 0) session_.transport().copy(board_.fabric.data(), board_.fabric.size() - 1);
    board_.barrier.wait();
    publication.retire(patience);
    session_.close(patience);
  }

 private:
  [[nodiscard]] int sources() const { return comparison_.job.source.ranks; }

  void restore(int repeat) {
    if (!wanted_.takes_part()) return;
    RestoreOptions options;
    options.deadline = patience;
    Restore restore = session_.restore(wanted_.catalog(), options);
    restore.wait();
    const RestoreReport& report = restore.report();
    const StageSeconds& s = report.seconds;
    facts_.needed = report.needed;
    facts_.moved = report.moved;
    facts_.local = report.local;
    facts_.mapped = report.ways.mapped;
    facts_.packed = report.ways.packed;
    facts_.stages[static_cast<std::size_t>(repeat)] = {s.wall, {s.join, s.plan, s.bind, s.move, s.verify, s.commit}};
  }

  std::vector<std::function<void(int)>> copy_turns() {
    std::span<const std::byte> source = held_.payload();
    if (source.empty() && !wanted_.payload().empty()) {
      spare_ = session_.allocate(wanted_.payload().size());
      std::memset(spare_.data(), 1, wanted_.payload().size());
      source = spare_.bytes();
    }
    std::vector<std::function<void(int)>> turns;
    for (const PlainCopy& plain : plain_copies()) {
      turns.emplace_back([this, &plain, source](int) { plain.copy(source, wanted_.payload()); });
    }
    return turns;
  }

  std::vector<std::function<void(int)>> tag_turns() {
    const bool sends = member_ < sources();
    loop_.emplace();
    auto& mine = board_.addresses[static_cast<std::size_t>(member_)];
    const auto address = loop_->address();
    if (address.size() > mine.bytes.size()) throw std::runtime_error("the address of a UCX worker is too long");
    std::copy(address.begin(), address.end(), mine.bytes.begin());
    mine.size = static_cast<std::uint32_t>(address.size());
    board_.barrier.wait();
    const auto& theirs = board_.addresses[static_cast<std::size_t>(sends ? member_ + sources() : member_ - sources())];
    loop_->connect(std::span(theirs.bytes).first(theirs.size));
    std::vector<std::function<void(int)>> turns;
    for (const std::size_t mib : message_sizes_mib) {
      turns.emplace_back([this, sends, size = mib << 20](int) {
        if (sends) {
          loop_->send(held_.payload(), size);
        } else {
          loop_->receive(wanted_.payload(), size);
        }
      });
    }
    return turns;
  }

  const Comparison& comparison_;
  Board& board_;
  int member_;
  MemberFacts& facts_;
  Session session_;
  Shard held_;
  Shard wanted_;
  Arena spare_;
  std::optional<TagLoop> loop_;
};

}  // namespace

int Comparison::members() const {
  return tcp ? job.source.ranks + job.target.ranks : std::max(job.source.ranks, job.target.ranks);
}

std::vector<std::string> Comparison::contenders() const {
  std::vector<std::string> names;
  if (tcp) {
    for (const std::size_t mib : message_sizes_mib) names.push_back(fmt::format("tag send, {} MiB", mib));
  } else {
    for (const PlainCopy& plain : plain_copies()) names.push_back(plain.name);
  }
  names.emplace_back("restore");
  return names;
}

void run_member(const Comparison& comparison, Board& board, int member) {
  Member(comparison, board, member).run();
}

}  // namespace shardwire::perf
