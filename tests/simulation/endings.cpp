// SPDX-License-Identifier: Apache-2.0
#include "endings.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shardwire::simulation {

namespace {

using Kind = Action::Kind;

constexpr std::pair<Kind, const char*> disturbances[] = {
    {Kind::kill, "kill"},     {Kind::vanish, "power"},  {Kind::stop, "stop"},       {Kind::cut, "cut"},
    {Kind::hole, "hole"},     {Kind::reset, "reset"},   {Kind::corrupt, "corrupt"}, {Kind::slow, "slow"},
    {Kind::update, "update"}, {Kind::retire, "retire"}, {Kind::leave, "leave"},     {Kind::cancel, "cancel"},
};
constexpr const char* methods[] = {"none", "mapped", "read", "sieved_read", "zcopy", "packed", "exchange", "rounds"};

double median_seconds(std::vector<Duration> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return seconds_of(*middle);
}

bool blows(Kind kind) {
  return kind == Kind::kill || kind == Kind::vanish || kind == Kind::stop;
}

}  // namespace

std::vector<Kind> struck_between(const Schedule& schedule, Duration from, Duration to) {
  std::vector<Kind> struck;
  for (const auto& [kind, name] : disturbances) {
    const bool meets = std::ranges::any_of(schedule.actions, [&, kind = kind](const Action& action) {
      return action.kind == kind && action.at <= to && action.at + action.lasts > from;
    });
    if (meets) struck.push_back(kind);
  }
  return struck;
}

std::optional<Action> last_blow(const Schedule& schedule, int member, Duration to) {
  std::optional<Action> last;  // actions ascend by time
  for (const Action& action : schedule.actions) {
    if (blows(action.kind) && action.member == member && action.at <= to) last = action;
  }
  return last;
}

void EndingTable::add(const Ending& ending) {
  std::vector<std::string> rows{"anything"};
  for (const auto& [kind, name] : disturbances) {
    if (std::ranges::find(ending.struck, kind) != ending.struck.end()) rows.emplace_back(name);
    for (const auto& [of, notice] : ending.notices) {
      if (of == kind) notices_[name].push_back(notice);
    }
  }
  if (ending.struck.empty()) rows.emplace_back("nothing");
  for (const std::string& row : rows) {
    Cell& cell = cells_[row][ending.method];
    ++(ending.completed ? cell.completed : cell.refused);
    cell.needed += ending.needed;
    cell.again += ending.again;
  }
}

// A call counts in the row of each kind that struck the job while it ran, whether or not that met one of its members.
std::string EndingTable::text() const {
  std::vector<std::string> rows{"nothing"};
  for (const auto& [kind, name] : disturbances) rows.emplace_back(name);
  rows.emplace_back("anything");
  std::string text = fmt::format("{:<9}", "completed");
  for (const char* method : methods) text += fmt::format(" {:>15}", method);
  text += fmt::format(" {:>9} {:>8}\n", "noticed", "again");
  for (const std::string& row : rows) {
    const auto found = cells_.find(row);
    if (found == cells_.end()) continue;
    text += fmt::format("{:<9}", row);
    ByteCount needed = 0;
    ByteCount again = 0;
    for (const char* method : methods) {
      const auto cell = found->second.find(method);
      if (cell == found->second.end()) {
        text += fmt::format(" {:>15}", "-");
        continue;
      }
      const Cell& one = cell->second;
      text += fmt::format(" {:>15}", fmt::format("{}/{}", one.completed, one.completed + one.refused));
      needed += one.needed;
      again += one.again;
    }
    const auto times = notices_.find(row);
    text += times == notices_.end() ? fmt::format(" {:>9}", "-")
                                    : fmt::format(" {:>7.3f} s", median_seconds(times->second));
    text += fmt::format(" {:>6.2f} %\n",
                        needed > 0 ? 100.0 * static_cast<double>(again) / static_cast<double>(needed) : 0.0);
  }
  return text;
}

}  // namespace shardwire::simulation
