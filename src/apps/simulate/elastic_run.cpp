#include "apps/simulate/elastic_run.hpp"

#include <fmt/format.h>

#include <vector>

#include "core/terminal.hpp"
#include "elastic/time_account.hpp"

namespace sailor::apps {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// The account of all events, and the changes ("goes_on") since the training last began.
struct Events {
  std::vector<json> changes{};
  elastic::TimeAccount account{};
  [[nodiscard]] Seconds total() const { return account.total(account.last()); }
  [[nodiscard]] double goodput() const { return account.goodput(account.last()); }
};

Events events_of(const RunRecord& run) {
  Events events;
  for (json& event : elastic::events_in(run.events)) {
    const std::string what = event.value("what", "");
    if (what == "begins") events.changes.clear();
    events.account.add(event);
    if (what == "goes_on") events.changes.push_back(std::move(event));
  }
  return events;
}

std::string share(Seconds part, Seconds all) {
  return all.value() > 0.0 ? fmt::format("{:.1f}%", part / all * 100.0) : "-";
}

}  // namespace

bool use_epochs_of(const Plan& plan, RunRecord& run) {
  bool found = false;
  for (EpochRecord& epoch : run.epochs) {
    const auto trained = parse_plan(epoch.plan_toml, "a plan of the run");
    if (!trained || plan_fingerprint(*trained) != plan_fingerprint(plan)) continue;
    if (!found) run.plan_toml = epoch.plan_toml;
    epoch.plan_toml = run.plan_toml;  // plans that differ in their origin only
    found = true;
  }
  return found;
}

std::string elastic_report(const RunRecord& run) {
  if (run.epochs.empty()) return {};
  const Events events = events_of(run);
  const Seconds all = events.total();
  const Seconds interrupted = events.account.without_training(events.account.last());
  const Seconds again = events.account.again();
  Table times({{"elastic training", Align::left}, {"time"}, {"share"}});
  times.add_row({"training", format_time(all - interrupted - again), share(all - interrupted - again, all)});
  times.add_row({"interrupted", format_time(interrupted), share(interrupted, all)});
  times.add_row({"iterations run again", format_time(again), share(again, all)});
  std::string text = "\n" + times.to_string();
  text += fmt::format("goodput {:.1f}% in {}\n", events.goodput() * 100.0, plural(run.epochs.size(), "epoch"));
  if (events.changes.empty()) return text;
  Table changes({{"iteration"}, {"time"}, {"again"}, {"from"}, {"ranks"}, {"why", Align::left}});
  for (const json& change : events.changes)
    changes.add_row({fmt::to_string(change.value("iteration", std::int64_t{0})),
                     format_time(Seconds(change.value("seconds", 0.0))),
                     fmt::to_string(change.value("iterations_again", std::int64_t{0})), change.value("from", ""),
                     fmt::to_string(change.value("ranks", 0)), change.value("why", "")});
  return text + "\n" + changes.to_string();
}

ordered_json elastic_to_json(const RunRecord& run) {
  if (run.epochs.empty()) return nullptr;
  const Events events = events_of(run);
  ordered_json epochs = ordered_json::array();
  for (const EpochRecord& epoch : run.epochs)
    epochs.push_back({{"epoch", epoch.epoch}, {"first_iteration", epoch.first_iteration}});
  return {{"seconds", events.total().value()},
          {"seconds_interrupted", events.account.without_training(events.account.last()).value()},
          {"seconds_again", events.account.again().value()},
          {"goodput", events.goodput()},
          {"iterations", run.iterations.size()},
          {"epochs", epochs},
          {"changes", events.changes}};
}

}  // namespace sailor::apps
