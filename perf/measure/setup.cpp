// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/setup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "perf/measure/copy.hpp"
#include "perf/measure/read_loop.hpp"
#include "perf/measure/tag_loop.hpp"
#include "support/checked.hpp"

namespace shardwire::perf {

namespace {

int members_of(const Setup& setup, const Case& job) {
  return setup.disjoint ? job.source.ranks + job.target.ranks : std::max(job.source.ranks, job.target.ranks);
}

}  // namespace

std::string_view to_string(Against against) {
  switch (against) {
    case Against::memcpy: return "memcpy";
    case Against::device_memcpy: return "device_memcpy";
    case Against::ucx: return "ucx";
    case Against::mpi: return "mpi";
    case Against::unverified: return "unverified";
    case Against::contiguous: return "contiguous";
    case Against::ucp_get: return "ucp_get";
    case Against::fi_read: return "fi_read";
    case Against::nccl: return "nccl";
  }
  return "";
}

int Setup::members() const {
  int most = 0;
  for (const Measurement& measurement : measurements) most = std::max(most, members_of(*this, measurement.job));
  return most;
}

bool Setup::has(Against one) const {
  return std::any_of(measurements.begin(), measurements.end(), [&](const Measurement& measurement) {
    return std::count(measurement.against.begin(), measurement.against.end(), one) > 0;
  });
}

bool is_checked(const Turn& turn) {
  switch (turn.kind) {
    case Turn::Kind::read:
    case Turn::Kind::mpi:
    case Turn::Kind::restore: return true;
    case Turn::Kind::copy:
    case Turn::Kind::device_copy:
    case Turn::Kind::tag:
    case Turn::Kind::nccl:
    case Turn::Kind::reference: return false;
  }
  return false;
}

std::vector<Turn> turns_of(const Measurement& measurement) {
  std::vector<Turn> turns;
  for (const Against against : measurement.against) {
    switch (against) {
      case Against::memcpy:
        for (std::size_t i = 0; i < plain_copies().size(); ++i) {
          turns.push_back({Turn::Kind::copy, i, plain_copies()[i].name, against});
        }
        break;
      case Against::device_memcpy: turns.push_back({Turn::Kind::device_copy, 0, "device memcpy", against}); break;
      case Against::ucx:
        for (std::size_t i = 0; i < tag_styles().size(); ++i) {
          turns.push_back({Turn::Kind::tag, i, tag_styles()[i].name, against});
        }
        break;
      case Against::ucp_get:
      case Against::fi_read:
        for (std::size_t i = 0; i < read_styles().size(); ++i) {
          turns.push_back(
              {Turn::Kind::read, i, fmt::format("{} {}", to_string(against), read_styles()[i].name), against});
        }
        break;
      case Against::nccl: turns.push_back({Turn::Kind::nccl, 0, "ncclSend, ncclRecv", against}); break;
      case Against::mpi: turns.push_back({Turn::Kind::mpi, 0, "MPI_Alltoallw", against}); break;
      case Against::unverified:
      case Against::contiguous:
        turns.push_back({Turn::Kind::reference, 0, std::string(to_string(against)), against});
        break;
    }
  }
  for (std::size_t i = 0; i < measurement.methods.size(); ++i) {
    const auto& method = measurement.methods[i];
    turns.push_back({Turn::Kind::restore, i, method ? std::string(to_string(*method)) : "restore"});
  }
  return turns;
}

ByteCount bytes_of_turns(const Setup& setup) {
  constexpr const char* what = "the size of all turns";
  ByteCount bytes = 0;
  for (const Measurement& one : setup.measurements) {
    const ByteCount turns = turns_of(one).size() * (static_cast<ByteCount>(setup.repeats) + 1);
    bytes = support::add(bytes, support::multiply(one.needed_bytes, turns, what), what);
  }
  return bytes;
}

std::optional<Rank> source_of(const Setup& /*setup*/, const Case& job, int member) {
  if (member >= job.source.ranks || job.source.is_lost(Rank{member})) return std::nullopt;
  return Rank{member};
}

std::optional<Rank> target_of(const Setup& setup, const Case& job, int member) {
  const int place = setup.disjoint ? member - job.source.ranks : member;
  if (place < 0 || place >= job.target.ranks) return std::nullopt;
  return Rank{place};
}

int member_of_target(const Setup& setup, const Case& job, Rank target) {
  return to_int(target) + (setup.disjoint ? job.source.ranks : 0);
}

Planner planner_of(const Setup& setup, const Case& job) {
  Topology topology;
  if (setup.disjoint) topology.colocated.assign(static_cast<std::size_t>(job.target.ranks), -1);
  return Planner(job.source.layout, job.target.layout, std::move(topology), setup.replicas);
}

int tag_sender_of(const Setup& setup, const Measurement& measurement, Rank target) {
  for (const Pair& pair : measurement.pairs) {
    if (pair.target == to_int(target)) return pair.source;
  }
  const Case& job = measurement.job;
  if (setup.disjoint) return to_int(target) % job.source.ranks;
  return (to_int(target) + 1) % members_of(setup, job);
}

}  // namespace shardwire::perf
