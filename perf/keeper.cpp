// SPDX-License-Identifier: Apache-2.0
// Measures what a keeper costs: publications that it keeps beside plain copies of the same bytes, and restores from it
// beside restores from living trainers; and what copies on another host cost a training loop. All ranks are threads of this
// process; so are the keepers.
// Outline: options; members of a job; publishing; restoring; copying.
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "keeper/keeper.hpp"
#include "perf/measure/row.hpp"
#include "perf/program.hpp"
#include "shardwire/shardwire.hpp"
#include "support/processor.hpp"

namespace {

using namespace shardwire;
using namespace shardwire::perf;
using namespace std::chrono_literals;
using WallClock = std::chrono::steady_clock;

struct Options {
  int ranks = 2;
  int ranks_after = 3;
  ByteCount mebibytes = 256;  // of a rank before
  int tensors = 100;
  int repeats = 7;
  std::string commit;
};

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

/// Runs `body(number)` on a thread each, and returns the greatest result.
double longest(int count, const std::function<double(int number)>& body) {
  std::vector<double> seconds(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  std::exception_ptr failure;
  for (int number = 0; number < count; ++number) {
    threads.emplace_back([&, number] {
      try {
        seconds[static_cast<std::size_t>(number)] = body(number);
      } catch (...) {
        failure = std::current_exception();
      }
    });
  }
  for (std::thread& one : threads) one.join();
  if (failure) std::rethrow_exception(failure);
  return *std::ranges::max_element(seconds);
}

double seconds_since(WallClock::time_point then) {
  return std::chrono::duration<double>(WallClock::now() - then).count();
}

/// One rank's state: equal tensors, cut by rows.
struct State {
  State(const Options& options, int rank, int ranks) : catalog(Rank{rank}, ranks) {
    const auto all = static_cast<Extent>((options.mebibytes << 20) / sizeof(float)) * options.ranks;
    const Extent row = 1024;
    const Extent rows = all / options.tensors / row;
    const Layout layout = Layout::chunk(0, ranks);
    for (int i = 0; i < options.tensors; ++i) {
      const TensorSpec spec{{"layer." + std::to_string(i), "exp_avg"}, DType::f32, {rows, row}};
      auto& memory =
          tensors.emplace_back(static_cast<std::size_t>(layout.local_elements(spec.shape, Rank{rank})), 1.0F);
      catalog.add(spec, layout, View{.data = memory.data()});
    }
  }
  [[nodiscard]] ByteCount bytes() const {
    ByteCount all = 0;
    for (const auto& one : tensors) all += one.size() * sizeof(float);
    return all;
  }
  std::vector<std::vector<float>> tensors;
  Catalog catalog;
};

/// One rank: its session, its state, and what it publishes.
struct Member {
  Member(const Options& options, int rank, int ranks, Session joined)
      : state(options, rank, ranks), session(std::move(joined)) {}
  State state;
  Session session;
  Publication publication;
};
using Members = std::vector<std::unique_ptr<Member>>;

/// Sockets of the keepers of two hosts, each of which has half of the ranks.
struct TwoHosts {
  std::string sockets[2];
};

/// Joins `before` ranks that publish and `after` ranks that restore, as members of one job.
Members join(const Options& options, int before, int after, const std::string& keeper,
             const TwoHosts* hosts = nullptr) {
  static std::uint16_t port = static_cast<std::uint16_t>(20000 + ::getpid() % 10000);
  ++port;
  Members members(static_cast<std::size_t>(before + after));
  longest(before + after, [&](int member) {
    Bootstrap bootstrap;
    bootstrap.rank = member;
    bootstrap.world_size = bootstrap.local_size = before + after;
    bootstrap.port = port;
    SessionOptions of_session;
    of_session.transport = "shm,tcp";
    of_session.keeper.job = keeper;
    if (hosts != nullptr) {
      const int host = member * 2 / (before + after);
      of_session.transport = "tcp";  // what hosts have between them
      of_session.keeper.socket = hosts->sockets[host];
      of_session.host_domain = fmt::format("host {}", host);
    }
    Session session = Session::join(std::move(bootstrap), of_session);
    const bool publishes = member < before;
    members[static_cast<std::size_t>(member)] = std::make_unique<Member>(
        options, publishes ? member : member - before, publishes ? before : after, std::move(session));
    return 0.0;
  });
  return members;
}

/// The longest time of the members from `first` on in `task`, which all begin together.
double together(Members& members, std::size_t first, const std::function<void(Member&)>& task) {
  static int rounds = 0;
  const std::string round = std::to_string(++rounds);
  return longest(static_cast<int>(members.size()), [&](int number) {
    const auto i = static_cast<std::size_t>(number);
    Member& member = *members[i];
    member.session.gather("begin " + round, {}, 60s);
    const auto began = WallClock::now();
    if (i >= first) task(member);
    const double seconds = seconds_since(began);
    member.session.gather("end " + round, {}, 60s);
    return i >= first ? seconds : 0.0;
  });
}

double restore(Members& members, std::size_t first) {
  return together(members, first, [](Member& member) {
    RestoreOptions newest;
    newest.step_rule = StepRule::newest_complete;
    Restore running = member.session.restore(member.state.catalog, newest);
    running.wait();
  });
}

nlohmann::ordered_json row(const Options& options, const char* what) {
  return {{"kind", "keeper"},
          {"target", "keeper"},
          {"what", what},
          {"processor", support::processor_model()},
          {"commit", options.commit},
          {"ranks", options.ranks},
          {"ranks_after", options.ranks_after},
          {"tensors", options.tensors},
          {"bytes", (options.mebibytes << 20) * static_cast<ByteCount>(options.ranks)}};
}

void measure_publishing(const Options& options, const std::string& keeper) {
  Members members = join(options, options.ranks, 0, keeper);
  std::int64_t step = 0;
  const auto publish = [&] {
    ++step;
    for (const auto& one : members) one->publication = Publication();
    return together(members, 0, [&](Member& member) {
      member.publication = member.session.publish(member.state.catalog, {.step = step, .keep = {.steps = 1}});
    });
  };
  std::vector<std::vector<std::byte>> copies(members.size(), std::vector<std::byte>(members.front()->state.bytes()));
  const auto copy = [&] {
    return together(members, 0, [&](Member& member) {
      std::byte* at = copies[static_cast<std::size_t>(member.session.rank())].data();
      for (const auto& one : member.state.tensors) {
        std::memcpy(at, one.data(), one.size() * sizeof(float));
        at += one.size() * sizeof(float);
      }
    });
  };
  const double first = publish();
  for (int warm = 0; warm < 2; ++warm) static_cast<void>(publish() + copy());
  std::vector<double> kept, copied;
  for (int i = 0; i < options.repeats; ++i) {
    copied.push_back(copy());
    kept.push_back(publish());
  }
  auto made = row(options, "publish with a keeper, and one plain copy of the same bytes");
  made["first_seconds"] = first;
  made["seconds"] = median(kept);
  made["copy_seconds"] = median(copied);
  made["beyond_ms"] = 1e3 * (median(kept) - median(copied));
  made["allowed_ms"] = 2 + 1e-3 * options.tensors;
  print_row(made);
}

void measure_restores(const Options& options, const std::string& keeper) {
  auto made = row(options, "first restore from a keeper whose trainers have ended, and warm ones from living trainers");
  {
    const auto began = WallClock::now();
    Members members = join(options, 0, options.ranks_after, keeper);
    made["join_seconds"] = seconds_since(began);
    made["first_from_keeper_seconds"] = restore(members, 0);
    std::vector<double> warm;
    for (int i = 0; i < options.repeats; ++i) warm.push_back(restore(members, 0));
    made["warm_from_keeper_seconds"] = median(warm);
  }
  Members members = join(options, options.ranks, options.ranks_after, {});
  for (int rank = 0; rank < options.ranks; ++rank) {
    Member& member = *members[static_cast<std::size_t>(rank)];
    member.publication = member.session.publish(member.state.catalog, {.step = 1, .snapshot = Snapshot::copy});
  }
  const auto first = static_cast<std::size_t>(options.ranks);
  made["first_from_trainers_seconds"] = restore(members, first);
  std::vector<double> warm;
  for (int i = 0; i < options.repeats; ++i) warm.push_back(restore(members, first));
  made["warm_from_trainers_seconds"] = median(warm);
  made["ratio"] = made["warm_from_keeper_seconds"].get<double>() / median(warm);
  print_row(made);
}

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// A loop that trains, in arithmetic on the rank's state, and publishes each step.
struct Loop {
  double seconds = 0;
  double processor_seconds = 0;
};

void measure_buddies(const Options& options, const std::string& keeper, const TwoHosts& hosts) {
  constexpr int steps = 5;
  Members members = join(options, options.ranks, 0, keeper, &hosts);
  std::int64_t step = 0;
  const auto train = [](State& state) {
    for (int pass = 0; pass < 4; ++pass) {
      for (auto& one : state.tensors) {
        for (float& element : one) element = element * 0.999F + 0.001F;
      }
    }
  };
  const auto run = [&](int keep, int buddies) {
    const double before = processor_seconds();
    const std::int64_t first = step;
    step += steps;
    const double seconds = together(members, 0, [&](Member& member) {
      for (std::int64_t at = first + 1; at <= first + steps; ++at) {
        train(member.state);
        member.session.gather(fmt::format("step {}", at), {}, 60s);  // as gradients do
        if (keep == 0) continue;
        member.publication = Publication();
        member.publication =
            member.session.publish(member.state.catalog, {.step = at, .keep = {.steps = keep}, .buddies = buddies});
      }
    });
    return Loop{seconds / steps, (processor_seconds() - before) / steps};
  };
  run(1, 1);
  std::vector<double> alone, kept, copied, spent_kept, spent_copied;
  for (int i = 0; i < options.repeats; ++i) {
    alone.push_back(run(0, 0).seconds);
    const Loop with_keeper = run(1, 0);
    const Loop with_buddies = run(1, 1);
    kept.push_back(with_keeper.seconds);
    copied.push_back(with_buddies.seconds);
    spent_kept.push_back(with_keeper.processor_seconds);
    spent_copied.push_back(with_buddies.processor_seconds);
  }
  auto made = row(options, "a training loop alone, with a keeper, and with a copy on another host over tcp");
  made["step_seconds"] = median(alone);
  made["step_with_keeper_seconds"] = median(kept);
  made["step_with_buddies_seconds"] = median(copied);
  made["slowdown_by_buddies"] = median(copied) / median(kept);
  made["processor_seconds_of_copies"] = median(spent_copied) - median(spent_kept);
  made["bytes_copied_per_step"] = made["bytes"];
  print_row(made);
}

std::unique_ptr<keeper::Keeper> start(const Options& options, KeeperOptions named, int snapshots) {
  keeper::Keeper::Options of_keeper;
  of_keeper.keeper = std::move(named);
  of_keeper.budget_bytes =
      static_cast<ByteCount>(snapshots) * (options.mebibytes << 20) * static_cast<ByteCount>(options.ranks);
  of_keeper.session.transport = "shm,tcp";
  of_keeper.log = [](LogLevel, std::string_view) {};
  return std::make_unique<keeper::Keeper>(std::move(of_keeper));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  Program program("perf_keeper", "Measures publications that a keeper holds, and restores from it.", options.commit);
  program.options().add_option("--ranks", options.ranks, "ranks that publish");
  program.options().add_option("--ranks-after", options.ranks_after, "ranks that restore");
  program.options().add_option("--mebibytes", options.mebibytes, "state of a rank that publishes");
  program.options().add_option("--tensors", options.tensors, "tensors of a rank");
  program.options().add_option("--repeats", options.repeats, "of each measurement; medians count");
  return program.run(argc, argv, [&] {
    const std::string name = fmt::format("perf-keeper-{}", ::getpid());
    {
      const auto keeper = start(options, {.job = name}, 3);
      measure_publishing(options, name);
      measure_restores(options, name);
    }
    const TwoHosts hosts{{name + " host 0", name + " host 1"}};
    const auto one = start(options, {.job = name, .socket = hosts.sockets[0]}, 4);
    const auto other = start(options, {.job = name, .socket = hosts.sockets[1]}, 4);
    measure_buddies(options, name, hosts);
    return 0;
  });
}
