// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/job.hpp"
#include "support/require.hpp"

// The tensor that the sessions of these tests move.
namespace shardwire::test {

inline const TensorSpec two_shards{{"w", ""}, DType::f32, {64, 100}};
inline constexpr ByteCount bytes_of_shard = 64 * 100 * 4 / 2;

/// Each of two members holds rows and wants columns.
struct Shards {
  TestShard held;
  TestShard wanted;
  Catalog source;
  Catalog target;
  explicit Shards(int rank)
      : held(two_shards, Layout::chunk(0, 2), Rank{rank}),
        wanted(two_shards, Layout::chunk(1, 2), Rank{rank}),
        source(Rank{rank}, 2),
        target(Rank{rank}, 2) {
    held.fill(1);
    held.add_to(source);
    wanted.add_to(target);
  }
};

/// Publishes and restores a tensor as the only member, and closes the session.
inline void restore_alone(Session& session) {
  TestShard held(two_shards, Layout::replicated(), Rank{0});
  TestShard wanted(two_shards, Layout::replicated(), Rank{0});
  held.fill(1);
  Catalog source(Rank{0}, 1);
  Catalog target(Rank{0}, 1);
  held.add_to(source);
  wanted.add_to(target);
  Publication publication = session.publish(source);
  session.restore(target, within(patience)).wait();
  require(wanted.wrong(1) == 0, "what was restored is what was published");
  publication.retire(patience);
  session.close(patience);
}

}  // namespace shardwire::test
