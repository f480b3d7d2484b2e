// SPDX-License-Identifier: Apache-2.0
// Published memory that changes by itself is found by digests that were taken when it was published, and is never committed.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "support/bytes.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(corrupt)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t bytes = std::size_t{5} << 20;  // several blocks, the last one shorter
constexpr std::size_t width = 1000;                  // rows are no power of two
constexpr std::size_t rows = bytes / width;

/// A method, and memory that it moves over the fabric under test.
struct Kind {
  RestoreMethod method;
  bool arena;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << to_string(to_method(kind.method));
}

std::vector<Kind> kinds() {
  std::vector<Kind> all{{RestoreMethod::zcopy, false}, {RestoreMethod::packed, false}};
  if (maps_arenas()) all.push_back({RestoreMethod::mapped, true});
  if (reads_ordinary_memory()) all.push_back({RestoreMethod::read, false});
  return all;
}

/// One tensor of one replica.
class Replica {
 public:
  Replica(Session& session, bool in_arena, std::uint8_t seed) {
    if (in_arena) arena_ = session.allocate(rows * width);
    if (!in_arena) own_.resize(rows * width);
    fill_pattern(memory(), seed);
  }
  [[nodiscard]] std::span<std::byte> memory() {
    return own_.empty() ? std::span(reinterpret_cast<std::byte*>(arena_.data()), rows * width) : std::span(own_);
  }
  [[nodiscard]] Catalog catalog(Rank rank, int ranks) {
    Catalog catalog(rank, ranks);
    catalog.add({{"w", "exp_avg"}, DType::u8, {rows, width}}, Layout::replicated(), View{.data = memory().data()});
    return catalog;
  }
  /// One bit in each quarter, so that each half of the tensor is affected.
  void rot() {
    for (const std::size_t quarter : {1U, 3U}) memory()[memory().size() / 4 * quarter + 17] ^= std::byte{8};
  }

 private:
  Arena arena_;
  std::vector<std::byte> own_;
};

/// Member 0 reads; the others hold the same tensor.
struct Job {
  Job(int holders, const Kind& kind, bool digest = true) : kind_(kind) {
    const auto port = free_port();
    for (int rank = 0; rank <= holders; ++rank)
      sessions.push_back(Session::join(member(rank, holders + 1, port), quick()));
    for (int i = 0; i < holders; ++i) {
      Session& session = sessions[static_cast<std::size_t>(i) + 1];
      replicas.emplace_back(session, kind.arena, 1);
      publications.push_back(session.publish(replicas.back().catalog(Rank{i}, holders), {.digest = digest}));
    }
  }
  Restore start(Replicas choice = Replicas::spread) {
    RestoreOptions options = within(patience);
    options.discovery_grace = patience;  // all holders publish
    options.method = kind_.method;
    options.replicas = choice;
    return sessions.front().restore(target.catalog(Rank{0}, 1), options);
  }

  Kind kind_;
  std::deque<Session> sessions;
  std::deque<Replica> replicas;
  std::deque<Publication> publications;
  Replica target{sessions.front(), false, 99};
};

void require_found(const RestoreReport& report) {
  BOOST_TEST(!report.corrupt.empty());
  for (const CorruptBox& one : report.corrupt) {
    BOOST_TEST(one.fqn == "w");
    BOOST_TEST(one.state == "exp_avg");
    BOOST_TEST(to_int(one.source) == 0);
    const auto first = static_cast<std::size_t>(one.box.lower(0)) * width;
    const auto end = static_cast<std::size_t>(one.box.upper(0)) * width;
    const auto is_inside = [&](std::size_t quarter) {
      const std::size_t at = rows * width / 4 * quarter + 17;
      return at >= first && at < end;
    };
    BOOST_TEST((is_inside(1) || is_inside(3)), to_string(one.box));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_replica_that_has_rotten_is_read_twice_and_then_another_one) {
  const Deadline deadline(300s);
  for (const Kind& kind : kinds()) {
    BOOST_TEST_CONTEXT(kind) {
      Job job(2, kind);
      job.replicas[0].rot();
      Restore restore = job.start();
      restore.wait();
      BOOST_TEST(has_pattern(job.target.memory(), 1));
      const RestoreReport report = restore.report();
      require_found(report);
      for (const CorruptBox& one : report.corrupt) {
        BOOST_TEST(std::ranges::count(report.corrupt, one) == 2, to_string(one.box));
      }
      BOOST_TEST(report.moved_bytes + report.local_bytes ==
                 report.needed_bytes + report.overread_bytes + report.resent_bytes);
      BOOST_TEST(report.needed_bytes == rows * width);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_only_holder_that_has_rotten_ends_the_restore_naming_tensor_box_and_rank) {
  const Deadline deadline(300s);
  for (const Kind& kind : kinds()) {
    BOOST_TEST_CONTEXT(kind) {
      Job job(1, kind);
      job.replicas[0].rot();
      Restore restore = job.start();
      const Error error = failure_of([&] { restore.wait(); });
      BOOST_TEST((error.code() == ErrorCode::corrupt), error.what());
      BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}}));
      BOOST_TEST(says(error, "w:exp_avg"), error.what());
      BOOST_TEST(says(error, "source rank 0"), error.what());
      BOOST_REQUIRE(!error.gaps().empty());
      BOOST_TEST(error.gaps().front().fqn == "w");
      BOOST_TEST(!error.retryable());
      require_found(restore.report());
    }
  }
}

BOOST_AUTO_TEST_CASE(memory_that_rots_between_two_restores_is_found_by_the_second) {
  const Deadline deadline(300s);
  for (const Kind& kind : kinds()) {
    BOOST_TEST_CONTEXT(kind) {
      Job job(1, kind);
      Restore sound = job.start();
      sound.wait();
      BOOST_TEST(has_pattern(job.target.memory(), 1));
      BOOST_TEST(sound.report().corrupt.empty());
      BOOST_TEST(sound.report().resent_bytes == 0U);
      job.replicas[0].rot();
      Restore restore = job.start();
      BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::corrupt));
    }
  }
}

// The second replica has other values, so that a mixture shows.
BOOST_AUTO_TEST_CASE(a_tensor_is_not_mixed_from_two_holders_that_are_not_taken_as_equal) {
  const Deadline deadline(300s);
  for (const Kind& kind : kinds()) {
    BOOST_TEST_CONTEXT(kind) {
      Job job(2, kind);
      job.publications[1] = Publication();
      fill_pattern(job.replicas[1].memory(), 2);
      job.publications[1] = job.sessions[2].publish(job.replicas[1].catalog(Rank{1}, 2), {.digest = true});
      job.replicas[0].rot();
      Restore restore = job.start(Replicas::first);
      restore.wait();
      BOOST_TEST(has_pattern(job.target.memory(), 2));
      require_found(restore.report());
    }
  }
}

BOOST_AUTO_TEST_CASE(replicas_that_are_compared_end_the_restore_where_one_has_rotten) {
  const Deadline deadline(300s);
  for (const Kind& kind : kinds()) {
    BOOST_TEST_CONTEXT(kind) {
      Job job(2, kind);
      job.replicas[0].rot();
      Restore restore = job.start(Replicas::compare);
      BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::corrupt));
    }
  }
}

BOOST_AUTO_TEST_CASE(without_digests_of_the_publication_nothing_is_found) {
  const Deadline deadline(300s);
  for (const Kind& kind : kinds()) {
    Job job(1, kind, false);
    job.replicas[0].rot();
    Restore restore = job.start();
    restore.wait();
    BOOST_TEST(!has_pattern(job.target.memory(), 1));
    BOOST_TEST(restore.report().corrupt.empty());
  }
}

BOOST_AUTO_TEST_CASE(an_update_takes_digests_again) {
  const Deadline deadline(300s);
  Job job(1, kinds().front());
  Replica next(job.sessions[1], false, 3);
  job.publications[0].update(next.catalog(Rank{0}, 1), 1, Snapshot::none, patience);
  Restore sound = job.start();
  sound.wait();
  BOOST_TEST(has_pattern(job.target.memory(), 3));
  next.rot();
  Restore restore = job.start();
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::corrupt));
}

BOOST_AUTO_TEST_CASE(a_rank_that_reads_its_own_memory_finds_it_rotten_too) {
  const Deadline deadline(300s);
  Session session = Session::join(member(0, 1, free_port()), quick());
  Replica held(session, false, 1);
  Replica target(session, false, 99);
  const Publication publication = session.publish(held.catalog(Rank{0}, 1), {.digest = true});
  session.restore(target.catalog(Rank{0}, 1), within(patience)).wait();
  BOOST_TEST(has_pattern(target.memory(), 1));
  held.rot();
  Restore restore = session.restore(target.catalog(Rank{0}, 1), within(patience));
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::corrupt));
  require_found(restore.report());
}

BOOST_AUTO_TEST_SUITE_END()
