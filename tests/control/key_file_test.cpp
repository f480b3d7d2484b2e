// SPDX-License-Identifier: Apache-2.0
#include "control/key_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <string>

#include "shardwire/bootstrap.hpp"
#include "shardwire/error.hpp"
#include "support/file.hpp"
#include "support/launch_variables.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(key_file)

using namespace shardwire;
using namespace shardwire::test;

namespace {

const std::string enough(16, 'k');

void set_mode(const File& file, mode_t mode) {
  BOOST_REQUIRE(::chmod(file.path().c_str(), mode) == 0);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_key_that_was_made_can_be_read_by_its_user_alone) {
  const File place("key");
  make_key_file(place.path());
  struct stat found {};
  BOOST_REQUIRE(::stat(place.path().c_str(), &found) == 0);
  BOOST_TEST((found.st_mode & 0777U) == 0600U);
  const Bytes key = read_key_file(place.path(), "key");
  BOOST_TEST(key.size() == 65U);  // 32 bytes in hex, and the end of the line
  refused(ErrorCode::invalid_argument, "File exists", [&] { make_key_file(place.path()); });
  BOOST_TEST((read_key_file(place.path(), "key") == key));
  const File other("other key");
  make_key_file(other.path());
  BOOST_TEST((read_key_file(other.path(), "key") != key));
}

BOOST_AUTO_TEST_CASE(a_place_that_is_not_there_is_named) {
  refused(ErrorCode::invalid_argument, "/nonexistent/key: No such file or directory",
          [] { make_key_file("/nonexistent/key"); });
}

BOOST_AUTO_TEST_CASE(a_file_that_others_can_read_or_change_is_refused) {
  const File file("key", enough);
  for (const mode_t open : {0604U, 0644U, 0660U, 0606U, 0601U, 0650U}) {
    set_mode(file, open);
    refused(ErrorCode::invalid_argument, "chmod 600 it", [&] { read_key_file(file.path(), "VARIABLE"); });
  }
  // A group may read root's files, and no others. Root or another user runs these tests.
  set_mode(file, 0440);
  const auto read = [&] { return read_key_file(file.path(), "VARIABLE"); };
  if (::geteuid() == 0) {
    BOOST_TEST(read().size() == enough.size());
  } else {
    refused(ErrorCode::invalid_argument, "chmod 600 it", read);
  }
  for (const mode_t closed : {0600U, 0400U, 0700U}) {
    set_mode(file, closed);
    BOOST_TEST(read_key_file(file.path(), "VARIABLE").size() == enough.size());
  }
}

BOOST_AUTO_TEST_CASE(a_short_key_is_refused_white_space_does_not_count) {
  for (const std::string& text : {enough.substr(1), enough.substr(1) + "\n\n\n", std::string(40, ' ')}) {
    const File file("key", text);
    set_mode(file, 0600);
    refused(ErrorCode::invalid_argument, "'shardwire key FILE' makes one",
            [&] { read_key_file(file.path(), "VARIABLE"); });
  }
  const File file("key", enough + "\n");
  set_mode(file, 0600);
  BOOST_TEST(read_key_file(file.path(), "VARIABLE").size() == enough.size() + 1);
}

BOOST_AUTO_TEST_CASE(what_is_no_key_is_named_with_its_variable) {
  const File empty("key", "");
  refused(ErrorCode::invalid_argument, "VARIABLE: " + empty.path() + ": the file is empty",
          [&] { read_key_file(empty.path(), "VARIABLE"); });
  refused(ErrorCode::invalid_argument, "VARIABLE: /dev/null: this is no regular file",
          [] { read_key_file("/dev/null", "VARIABLE"); });
  refused(ErrorCode::invalid_argument, "VARIABLE: .: Is a directory", [] { read_key_file(".", "VARIABLE"); });
  const File large("key", std::string(5000, 'k'));
  refused(ErrorCode::invalid_argument, "at most 4096 bytes", [&] { read_key_file(large.path(), "VARIABLE"); });
}

BOOST_AUTO_TEST_CASE(the_environment_names_it) {
  const File file("key", enough);
  set_mode(file, 0644);
  const Environment environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"SHARDWIRE_JOB_KEY_FILE", file.path()}});
  refused(ErrorCode::invalid_argument, "SHARDWIRE_JOB_KEY_FILE: " + file.path(), [] { bootstrap_from_env(); });
  set_mode(file, 0600);
  BOOST_TEST(bootstrap_from_env().job_key.size() == enough.size());
}

BOOST_AUTO_TEST_SUITE_END()
