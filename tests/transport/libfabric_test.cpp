// SPDX-License-Identifier: Apache-2.0
// The libfabric transport over TCP, where keys are checked: effects of hostile peers and of failed connections.
#include <sys/resource.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <stdexcept>

#include "conformance/pair.hpp"
#include "support/child.hpp"
#include "support/descriptor_limit.hpp"
#include "support/forked.hpp"
#include "transport/bytes.hpp"

BOOST_AUTO_TEST_SUITE(libfabric)

using namespace shardwire;
using namespace shardwire::test;
using transport::WallClock;

namespace {

void choose_providers(const char* names) {
  ::setenv("SHARDWIRE_TEST_TRANSPORT", "libfabric", 1);
  ::setenv("FI_PROVIDER", names, 1);
  ::setenv("FI_TCP_IFACE", "lo", 1);
}

/// Runs in its own process: the library reads FI_PROVIDER once.
template <typename Body>
void with_providers(const char* names, Body body) {
  Forked child([&](int) {
    choose_providers(names);
    body();
  });
  BOOST_TEST(child.reap() == 0);
}

void require(bool held, const std::string& what) {
  if (!held) throw std::runtime_error(what);
}

std::string refusal(const char* names) {
  ::setenv("FI_PROVIDER", names, 1);
  try {
    transport::choose("libfabric");
    return {};
  } catch (const Error& error) {
    require(error.code() == ErrorCode::unsupported, "another code than unsupported");
    return error.what();
  }
}

void require_said(const std::string& text, std::string_view part) {
  require(text.find(part) != std::string::npos, "\"" + text + "\" does not say \"" + std::string(part) + "\"");
}

/// `sealed` with one bit changed and a correct checksum.
Bytes flipped(const Bytes& sealed, std::size_t at, int bit) {
  const transport::ByteView body = *transport::unseal(sealed);
  Bytes changed(body.begin(), body.end());
  changed[at] ^= std::byte{1} << bit;
  transport::seal(changed);
  return changed;
}

std::size_t body_bytes(const Bytes& sealed) {
  return transport::unseal(sealed)->size();
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_provider_that_is_named_and_not_there_or_checks_no_keys_is_refused) {
  const Deadline deadline(120s);
  with_providers("no-such-provider", [] { require_said(refusal("no-such-provider"), "no-such-provider"); });
  with_providers("shm", [] {
    require_said(refusal("shm"), "checks no key");
    require_said(refusal("shm"), "FI_PROVIDER is \"shm\"");
  });
}

// No wrong key reads other memory, and the source continues.
BOOST_AUTO_TEST_CASE(keys_with_a_wrong_bit_open_nothing) {
  const Deadline deadline(120s);
  with_providers("tcp", [] {
    Pair pair;
    const Bytes content = pattern(10'000);
    const auto region = pair.left->allocate(content.size());
    std::ranges::copy(content, region->memory().span().begin());
    const Bytes good = region->key();
    int refused = 0;
    int failed = 0;
    for (std::size_t at = 0; at < body_bytes(good); ++at) {
      if (pair.to_left->failed()) pair.to_left = connect_anew(*pair.right, *pair.left, pair.to_right);
      const Bytes bad = flipped(good, at, static_cast<int>(at % 8));
      try {
        const auto remote = pair.to_left->import_region({bad}, content.size());
        Bytes into(content.size());
        Result result;
        read(*pair.to_left, *remote, 0, into, result.completion());
        require(pair.until([&] { return result.done; }), "a read did not end");
        if (result.succeeded()) {
          require(into == content, "other memory was read");  // a bit that increases the size
        } else {
          ++failed;  // with the region's bytes if the generation word was the changed part
          require(into == content || std::ranges::count(into, std::byte{0}) == std::ssize(into),
                  "other memory was read");
        }
      } catch (const Error& error) {
        require(error.code() == ErrorCode::transport_failed, error.what());
        ++refused;
      }
    }
    require(refused > 24, "keys of other fabrics, or garbled ones, were taken");
    require(failed > 8, "keys that are not the region's opened it");
    // Beyond the end, with a key that claims more bytes.
    transport::ByteView view = *transport::unseal(good);
    Bytes claiming(view.begin(), view.end());
    claiming[3 * sizeof(std::uint64_t) + 2] = std::byte{1};  // 65,536 bytes more
    transport::seal(claiming);
    if (pair.to_left->failed()) pair.to_left = connect_anew(*pair.right, *pair.left, pair.to_right);
    const auto remote = pair.to_left->import_region({claiming}, 60'000);
    Bytes into(60'000);
    Result past;
    read(*pair.to_left, *remote, 0, into, past.completion());
    require(pair.until([&] { return past.done; }), "a read past the end did not end");
    require(past.outcome && past.outcome->code == ErrorCode::withdrawn, "a region was read past its end");
    pair.to_left = connect_anew(*pair.right, *pair.left, pair.to_right);
    const auto whole = import_region(*pair.to_left, *region, content.size());
    into.resize(content.size());
    Result last;
    read(*pair.to_left, *whole, 0, into, last.completion());
    require(pair.until([&] { return last.done; }) && last.succeeded(), "the source does not go on");
    require(into == content, "the source has other bytes");
  });
}

BOOST_AUTO_TEST_CASE(a_key_of_another_fabric_is_refused) {
  const Deadline deadline(120s);
  with_providers("tcp", [] {
    Pair pair;
    const auto other = open_fabric();
    const auto region = other->allocate(100);
    try {
      import_region(*pair.to_left, *region, 100);
      require(false, "it was taken");
    } catch (const Error& error) {
      require_said(error.what(), "of another fabric");
    }
  });
}

BOOST_AUTO_TEST_CASE(memory_of_a_device_is_not_read_into_by_software_and_a_restore_is_sent_elsewhere) {
  const Deadline deadline(120s);
  with_providers("tcp", [] {
    Pair pair;
    constexpr transport::MemoryPlace device{MemoryKind::cuda, 0};
    const transport::Path path = pair.to_left->path(device);
    require(!path.read && !path.gpu_direct, "it says that it reads there");
    require_said(path.why_not.detail, "host memory only");
    const auto region = pair.left->allocate(100);
    const auto remote = import_region(*pair.to_left, *region, 100);
    Bytes into(100);
    const transport::ReadRange range{0, {into.data(), into.size(), device}};
    Result result;
    pair.to_left->read(*remote, std::span(&range, 1), result.completion());
    require(pair.until([&] { return result.done; }), "it never ends");
    require(result.outcome && result.outcome->code == ErrorCode::cancelled, "it ends otherwise");
    require(into == Bytes(100), "something was written");
    read(*pair.to_left, *remote, 0, into, result.completion());
    require(!pair.to_left->failed(), "the endpoint has failed");
  });
}

// The caller then uses another fabric, and may return later.
BOOST_TEST_DECORATOR(*boost::unit_test::precondition(descriptors_may_run_out))
BOOST_AUTO_TEST_CASE(a_region_that_cannot_be_imported_for_want_of_descriptors_can_be_later) {
  const Deadline deadline(120s);
  with_providers("tcp", [] {
    Pair pair;
    const Bytes content = pattern(1000);
    const auto region = pair.left->allocate(content.size());
    std::ranges::copy(content, region->memory().span().begin());
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit none{8, limit.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
    try {
      import_region(*pair.to_left, *region, content.size());
      require(false, "it was imported without a descriptor");
    } catch (const Error& error) {
      require(error.code() == ErrorCode::out_of_resources, error.what());
      require_said(error.what(), "ulimit -n");
    }
    ::setrlimit(RLIMIT_NOFILE, &limit);
    require(!pair.to_left->failed(), "the endpoint has failed");
    const auto remote = import_region(*pair.to_left, *region, content.size());
    Bytes into(content.size());
    Result result;
    read(*pair.to_left, *remote, 0, into, result.completion());
    require(pair.until([&] { return result.done; }) && result.succeeded(), "it cannot be read");
    require(into == content, "other bytes were read");
  });
}

// The transport checks magic number, format, length and address family of a name before it calls libfabric.
BOOST_AUTO_TEST_CASE(addresses_with_a_wrong_bit_are_refused_where_libfabric_would_trust_them) {
  const Deadline deadline(120s);
  with_providers("tcp", [] {
    Pair pair;
    const Bytes good = pair.left->address();
    constexpr std::size_t fabric_at = 8;
    constexpr std::size_t format_at = 16;
    constexpr std::size_t family_end = 26;
    for (std::size_t at = 0; at < family_end; ++at) {
      if (at >= fabric_at && at < format_at) continue;  // any number is valid there
      SocketsBetween sockets = make_sockets(pair.right->sockets());
      try {
        pair.right->connect({.address = flipped(good, at, static_cast<int>(at % 8)),
                             .same_host = true,
                             .sockets = std::move(sockets.here)});
        require(false, "an address was taken that differs at " + std::to_string(at));
      } catch (const Error& error) {
        require(error.code() == ErrorCode::transport_failed, error.what());
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(a_peer_that_cannot_be_connected_to_ends_reads_after_a_while) {
  const Deadline deadline(120s);
  with_providers("tcp", [] {
    Pair pair;
    const auto region = pair.left->allocate(1000);
    const auto remote = import_region(*pair.to_left, *region, 1000);
    Bytes into(1000);
    Result result;
    read(*pair.to_left, *remote, 0, into, result.completion());
    const auto began = WallClock::now();
    // The other side does not progress, so the connection is never established.
    require(run_until([&] { pair.right->progress(); }, [&] { return result.done; }, 40s), "a read did not end");
    require(result.outcome.has_value(), "memory was read without its owner");
    require(WallClock::now() - began < 30s, "it took too long");
    require(pair.to_left->failed(), "the endpoint has not failed");
  });
}

BOOST_AUTO_TEST_CASE(it_needs_a_socket_to_its_peer) {
  const Deadline deadline(120s);
  with_providers("tcp", [] {
    Pair pair;
    try {
      pair.left->connect({.address = pair.right->address(), .same_host = true});
      require(false, "it connects without one");
    } catch (const Error& error) {
      require(error.code() == ErrorCode::unsupported, error.what());
    }
    SocketsBetween sockets = make_sockets(pair.left->sockets());
    const auto endpoint = pair.left->connect({.address = pair.right->address(), .sockets = std::move(sockets.here)});
    const std::byte word{1};
    require(::write(sockets.there.front().descriptor.get(), &word, 1) == 1, "write");
    require(run_until([&] { pair.step(); }, [&] { return endpoint->failed(); }, promptly),
            "a byte on it means nothing");
  });
}

BOOST_AUTO_TEST_SUITE_END()
