// SPDX-License-Identifier: Apache-2.0
// SessionOptions::encrypt_payload: who asks for it gets nothing in clear over tcp, in either direction.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "control/tls.hpp"
#include "handles/session_state.hpp"
#include "session/surroundings.hpp"
#include "support/deadline.hpp"
#include "support/encryption_built.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(encrypt_payload)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

struct Role {
  bool encrypts = false;
  bool has_openssl = true;
};

/// The last but one member publishes a tensor, the last one reads it over tcp.
struct Job {
  Job(bool source_encrypts, bool reader_encrypts)
      : Job(std::vector<Role>{{.encrypts = source_encrypts}, {.encrypts = reader_encrypts}}) {}
  explicit Job(const std::vector<Role>& roles) {
    const std::uint16_t port = free_port();
    const auto members = static_cast<int>(roles.size());
    for (int number = 0; number < members; ++number) {
      Bootstrap bootstrap = member(number, members, port);
      bootstrap.job_key = Bytes(32, std::byte{7});
      SessionOptions options = quick();
      options.transport = "tcp";
      const Role& role = roles[static_cast<std::size_t>(number)];
      options.encrypt_payload = role.encrypts;
      sessions.push_back(detail::SessionState::join_in([&] { return around(role); }, bootstrap, options));
    }
    held.fill(5);
    Catalog catalog(Rank{0}, 1);
    held.add_to(catalog);
    publication = source().publish(catalog);
  }
  void restore() {
    Catalog catalog(Rank{0}, 1);
    wanted.add_to(catalog);
    Restore restore = reader().restore(catalog, within(30s));
    restore.wait();
    report = restore.report();
  }
  std::string carrier() {
    const auto found = reader().paths("state", patience);
    BOOST_REQUIRE(found.size() == 1U);
    BOOST_REQUIRE(!found[0].memory.empty());
    BOOST_REQUIRE(!found[0].memory[0].transports.empty());
    return found[0].memory[0].transports[0].device;
  }

  static detail::Surroundings around(const Role& role) {
    detail::Surroundings made = detail::surroundings_of_process();
    if (role.has_openssl) return made;
    made.load_tls = [](std::string& why_not) -> const TlsModule* {
      why_not = "this test has taken it away";
      return nullptr;
    };
    return made;
  }
  Session& source() { return sessions[sessions.size() - 2]; }
  Session& reader() { return sessions.back(); }

  std::vector<Session> sessions;
  TestShard held{TensorSpec{{"w", "m"}, DType::f32, {300'000}}, Layout::replicated(), Rank{0}};
  TestShard wanted{TensorSpec{{"w", "m"}, DType::f32, {300'000}}, Layout::replicated(), Rank{0}};
  Publication publication;
  RestoreReport report;
};

}  // namespace

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(test::encryption_is_built))
BOOST_DATA_TEST_CASE(a_reader_that_asks_for_it_gets_it, boost::unit_test::data::make({false, true}), source) {
  const Deadline deadline(120s);
  Job job(source, true);
  job.restore();
  BOOST_TEST(job.wanted.wrong(5) == 0U);
  BOOST_TEST(job.carrier().find("encrypted (TLS 1.3)") != std::string::npos, job.carrier());
}

BOOST_AUTO_TEST_CASE(nothing_is_encrypted_unasked, *boost::unit_test::precondition(test::encryption_is_built)) {
  const Deadline deadline(120s);
  Job job(false, false);
  job.restore();
  BOOST_TEST(job.wanted.wrong(5) == 0U);
  BOOST_TEST(job.carrier().find("encrypted") == std::string::npos, job.carrier());
}

BOOST_AUTO_TEST_CASE(a_report_predicts_the_time_of_encryption,
                     *boost::unit_test::precondition(test::encryption_is_built)) {
  const Deadline deadline(120s);
  RestoreReport reports[2];
  for (const bool encrypts : {false, true}) {
    Job job(encrypts, encrypts);
    job.restore();
    reports[encrypts ? 1 : 0] = job.report;
  }
  BOOST_TEST(reports[0].moved_bytes == reports[1].moved_bytes);
  BOOST_REQUIRE(reports[0].methods[Method::zcopy].bytes == reports[0].moved_bytes);
  BOOST_REQUIRE(reports[1].methods[Method::zcopy].bytes == reports[1].moved_bytes);
  BOOST_TEST(reports[1].methods[Method::zcopy].predicted_seconds >
             1.5 * reports[0].methods[Method::zcopy].predicted_seconds);
  BOOST_REQUIRE(reports[0].peers.size() == 1U);
  BOOST_REQUIRE(reports[1].peers.size() == 1U);
  BOOST_TEST(reports[1].peers[0].predicted_seconds > 1.5 * reports[0].peers[0].predicted_seconds);
}

BOOST_AUTO_TEST_CASE(a_source_that_asks_for_it_sends_nothing_to_who_does_not,
                     *boost::unit_test::precondition(test::encryption_is_built)) {
  const Deadline deadline(120s);
  Job job(true, false);
  const Error error = failure_of([&] { job.restore(); });
  BOOST_TEST((error.code() == ErrorCode::unsupported), error.what());
  BOOST_TEST(says(error, "only encrypted"), error.what());
}

BOOST_AUTO_TEST_CASE(who_asks_for_it_without_openssl_does_not_join) {
  const Deadline deadline(120s);
  const Error error = failure_of([] { Job(std::vector<Role>{{.encrypts = true, .has_openssl = false}}); });
  BOOST_TEST((error.code() == ErrorCode::unsupported), error.what());
  BOOST_TEST(says(error, "this test has taken it away"), error.what());
}

// Between a member and member 0, whoever of them asks: the join fails.
BOOST_TEST_DECORATOR(*boost::unit_test::precondition(test::encryption_is_built))
BOOST_DATA_TEST_CASE(a_member_without_openssl_and_one_that_asks_for_it_do_not_join,
                     boost::unit_test::data::make({false, true}), member_0_asks) {
  const Deadline deadline(120s);
  const Role asks{.encrypts = true};
  const Role lacks{.has_openssl = false};
  const Error error = failure_of([&] {
    Job(member_0_asks ? std::vector<Role>{asks, lacks} : std::vector<Role>{lacks, asks});
  });
  BOOST_TEST((error.code() == ErrorCode::unsupported), error.what());
  BOOST_TEST(says(error, "encrypt_payload"), error.what());
  BOOST_TEST(says(error, "no OpenSSL 3"), error.what());
}

// Both join at member 0, which asks for nothing. The restore fails, with the destination as it was.
BOOST_TEST_DECORATOR(*boost::unit_test::precondition(test::encryption_is_built))
BOOST_DATA_TEST_CASE(nothing_moves_between_a_member_without_openssl_and_one_that_asks_for_it,
                     boost::unit_test::data::make({false, true}), source_asks) {
  const Deadline deadline(120s);
  const Role asks{.encrypts = true};
  const Role lacks{.has_openssl = false};
  Job job(std::vector<Role>{{}, source_asks ? asks : lacks, source_asks ? lacks : asks});
  const Bytes before(job.wanted.data(), job.wanted.data() + job.wanted.size_bytes());
  const Error error = failure_of([&] { job.restore(); });
  BOOST_TEST((error.code() == ErrorCode::unsupported), error.what());
  BOOST_TEST(says(error, "encrypt_payload"), error.what());
  BOOST_TEST(says(error, "no OpenSSL 3"), error.what());
  BOOST_TEST(std::equal(before.begin(), before.end(), job.wanted.data()));
}

BOOST_AUTO_TEST_CASE(a_variable_asks_for_it_too_and_is_not_misread) {
  const auto code_with = [](const char* value) {
    ::setenv("SHARDWIRE_ENCRYPT_PAYLOAD", value, 1);
    const Error error = failure_of([] { Session::join(member(0, 2, free_port()), quick()); });
    ::unsetenv("SHARDWIRE_ENCRYPT_PAYLOAD");
    BOOST_TEST((error.code() == ErrorCode::invalid_argument), error.what());
    return std::string(error.what());
  };
  BOOST_TEST(code_with("1").find("job key") != std::string::npos);
  BOOST_TEST(code_with("yes").find("SHARDWIRE_ENCRYPT_PAYLOAD=yes") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(transports_that_do_not_encrypt_are_warned_of,
                     *boost::unit_test::precondition(test::encryption_is_built)) {
  const auto warnings_over = [](const std::string& transports, bool asks) {
    auto warnings = std::make_shared<std::string>();
    SessionOptions options = quick();
    options.transport = transports;
    options.encrypt_payload = asks;
    options.log = [warnings](LogLevel level, std::string_view text) {
      if (level == LogLevel::warning) *warnings += text;
    };
    Bootstrap alone = member(0, 1, free_port());
    alone.job_key = Bytes(32, std::byte{7});
    Session::join(alone, options);  // and ends
    return *warnings;
  };
  const std::string both = warnings_over("shm,tcp", true);
  BOOST_TEST(both.find("bytes of tensors that move over shm are not encrypted") != std::string::npos, both);
  for (const std::string& none : {warnings_over("tcp", true), warnings_over("shm,tcp", false)}) {
    BOOST_TEST(none.find("encrypt") == std::string::npos, none);
  }
}

BOOST_AUTO_TEST_CASE(it_needs_a_key) {
  SessionOptions options = quick();
  options.encrypt_payload = true;
  const Error error = failure_of([&] { Session::join(member(0, 2, free_port()), options); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument), error.what());
  BOOST_TEST(says(error, "job key"));
}

BOOST_AUTO_TEST_SUITE_END()
