// The result of judge(), for people and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "core/statistics.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "preflight/gather_facts.hpp"
#include "preflight/node_check_parts.hpp"
#include "slurm/node_records.hpp"

namespace sailor::preflight {

namespace {

using nlohmann::ordered_json;

std::string_view to_string(LinkKind kind) {
  constexpr std::array<std::string_view, 4> names{"send", "all_reduce_within_node", "all_reduce_between_nodes",
                                                  "all_reduce_all"};
  return names[static_cast<std::size_t>(kind)];
}

/// Nodes with the same findings.
struct Alike {
  const NodeVerdict* first = nullptr;
  std::vector<std::string> names;
  std::vector<int> ranks;
};

/// Folds nodes that have the same findings and number of ranks.
std::vector<Alike> fold_nodes(const Verdict& verdict) {
  std::vector<Alike> rows;
  for (const NodeVerdict& node : verdict.nodes) {
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Alike& alike) {
      return alike.first->findings == node.findings && alike.first->ranks.size() == node.ranks.size();
    });
    if (row == rows.end()) row = rows.insert(rows.end(), Alike{.first = &node});
    row->names.push_back(node.node);
    row->ranks.insert(row->ranks.end(), node.ranks.begin(), node.ranks.end());
  }
  for (Alike& row : rows) std::sort(row.ranks.begin(), row.ranks.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Alike& a, const Alike& b) { return a.first->outcome() > b.first->outcome(); });
  return rows;
}

void add_findings(Table& table, const std::string& who, const std::string& ranks, Outcome outcome,
                  const std::vector<Finding>& findings) {
  if (findings.empty()) {
    table.add_row({who, ranks, std::string(to_string(outcome)), "", ""});
    return;
  }
  for (std::size_t i = 0; i < findings.size(); ++i) {
    const Finding& finding = findings[i];
    // Names of files may hold line breaks.
    table.add_row({i == 0 ? who : "", i == 0 ? ranks : "", std::string(to_string(finding.outcome)), finding.check,
                   slurm::printable(finding.what)});
    if (!finding.remedy.empty()) table.add_row({"", "", "", "", "-> " + finding.remedy});
  }
}

void add_measured(Table& table, const std::string& what, const std::string& of, const std::vector<double>& values,
                  std::string (*text)(double)) {
  if (!values.empty())
    table.add_row({what, of, text(quantile(values, 0.5)), text(*std::min_element(values.begin(), values.end()))});
}

std::string measured(const Allocation& allocation) {
  Table table({{"measured", Align::left}, {"", Align::left}, {"median"}, {"slowest"}});
  const auto bandwidth = [](double rate) { return format_bandwidth(BytesPerSecond(rate)); };
  std::vector<double> products;
  std::vector<double> copies;
  std::vector<double> writing;
  for (const RankFacts& facts : allocation.ranks) {
    if (facts.speed) {
      products.push_back(facts.speed->flop_per_s);
      copies.push_back(facts.speed->bytes_per_s);
    }
    if (facts.writing && facts.writing->problem.empty()) writing.push_back(facts.writing->bytes_per_s);
  }
  const std::string of_ranks = plural(products.size(), "rank");
  add_measured(table, "matrix products", of_ranks, products, flop_rate);
  add_measured(table, "copies in memory", of_ranks, copies, bandwidth);
  constexpr std::array<std::tuple<LinkKind, const char*, const char*>, 4> kinds{
      std::tuple(LinkKind::send, "messages from node to node", "link"),
      std::tuple(LinkKind::all_reduce_within_node, "all-reduce within a node", "node"),
      std::tuple(LinkKind::all_reduce_between_nodes, "all-reduce between nodes", ""),
      std::tuple(LinkKind::all_reduce_all, "all-reduce over all ranks", "")};
  for (const auto& [kind, what, noun] : kinds) {
    std::vector<double> values;
    for (const LinkSpeed& link : allocation.speed.links)
      if (link.kind == kind) values.push_back(link.bandwidth.value());
    const std::string of(noun);
    add_measured(table, what, of.empty() ? of : plural(values.size(), of), values, bandwidth);
  }
  add_measured(table, "files, stored (fsync)", plural(writing.size(), "node"), writing, bandwidth);
  return table.rows() == 0 ? "" : table.to_string() + "\n";
}

ordered_json to_json(const std::vector<Finding>& findings) {
  ordered_json rows = ordered_json::array();
  for (const Finding& finding : findings)
    rows.push_back({{"check", finding.check},
                    {"outcome", to_string(finding.outcome)},
                    {"what", valid_utf8(finding.what)},
                    {"remedy", finding.remedy}});
  return rows;
}

}  // namespace

std::string fold_names(const std::vector<std::string>& names) {
  struct Row {
    std::string prefix;
    std::size_t width = 0;  // of the number with its zeros
    std::vector<int> numbers;
    std::string name;  // without a number
  };
  std::vector<Row> rows;
  for (const std::string& name : names) {
    std::size_t digits = name.size();
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
    Row row{.prefix = name.substr(0, digits), .width = name.size() - digits, .numbers = {}, .name = name};
    int number = 0;
    const char* const end = name.data() + name.size();
    if (row.width == 0 || std::from_chars(name.data() + digits, end, number).ec != std::errc()) {
      rows.push_back(std::move(row));
      continue;
    }
    const bool padded = name[digits] == '0' && row.width > 1;
    // Numbers without leading zeros are folded together, whatever their length.
    if (!padded) row.width = std::to_string(number).size();
    row.numbers = {number};
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& other) {
      if (other.prefix != row.prefix || other.numbers.empty()) return false;
      const bool other_padded = other.name[digits] == '0' && other.name.size() - digits > 1;
      return padded || other_padded ? other.name.size() == name.size() : true;
    });
    if (same == rows.end())
      rows.push_back(std::move(row));
    else
      same->numbers.push_back(number);
  }
  std::string text;
  for (Row& row : rows) {
    if (!text.empty()) text += ",";
    if (row.numbers.size() < 2) {
      text += row.name;
      continue;
    }
    std::sort(row.numbers.begin(), row.numbers.end());
    std::string list;
    for (std::size_t i = 0; i < row.numbers.size();) {
      std::size_t end = i;
      while (end + 1 < row.numbers.size() && row.numbers[end + 1] == row.numbers[end] + 1) ++end;
      list += fmt::format("{}{:0{}}", list.empty() ? "" : ",", row.numbers[i], row.width);
      if (end > i) list += fmt::format("-{:0{}}", row.numbers[end], row.width);
      i = end + 1;
    }
    text += fmt::format("{}[{}]", row.prefix, list);
  }
  return text;
}

std::string report(const Verdict& verdict, const Allocation& allocation) {
  Table table({{"node", Align::left},
               {"ranks", Align::left},
               {"verdict", Align::left},
               {"check", Align::left},
               {"why", Align::left}});
  if (!verdict.job.empty()) add_findings(table, "(job)", "", Outcome::ok, verdict.job);
  for (const Alike& row : fold_nodes(verdict))
    add_findings(table, fold_names(row.names), core_list(row.ranks), row.first->outcome(), row.first->findings);
  std::string text = table.to_string() + "\n" + measured(allocation);
  for (const Finding& finding : verdict.not_checked)
    text += fmt::format("not checked: {}: {}\n", finding.check, slurm::printable(finding.what));
  if (!verdict.not_checked.empty()) text += "\n";
  const auto count = [&](Outcome outcome) {
    return std::count_if(verdict.nodes.begin(), verdict.nodes.end(),
                         [&](const NodeVerdict& node) { return node.outcome() == outcome; });
  };
  const auto of_job = std::count_if(verdict.job.begin(), verdict.job.end(),
                                    [](const Finding& finding) { return finding.outcome == Outcome::fail; });
  text += fmt::format(
      "{}: {} fit, {} to look at, {} to exclude{}\n", plural(verdict.nodes.size(), "node"), count(Outcome::ok),
      count(Outcome::warn), count(Outcome::fail),
      of_job == 0 ? ""
                  : fmt::format("; the job as a whole failed {}", plural(static_cast<std::size_t>(of_job), "check")));
  const std::vector<std::string> exclude = verdict.exclude();
  if (!exclude.empty()) text += fmt::format("--exclude={}\n", join(exclude, ","));
  return text;
}

std::string one_line(const Verdict& verdict) {
  std::vector<Finding> findings = verdict.job;
  std::vector<std::string> nodes;
  for (const NodeVerdict& node : verdict.nodes) {
    nodes.push_back(node.node);
    findings.insert(findings.end(), node.findings.begin(), node.findings.end());
  }
  sort_by_outcome(findings);
  std::string line = fmt::format("{}: {}", to_string(verdict.outcome()), fold_names(nodes));
  if (findings.empty()) return line;
  line += fmt::format(": {}: {}", findings.front().check, slurm::printable(findings.front().what));
  std::set<std::string> others;
  for (std::size_t i = 1; i < findings.size(); ++i) others.insert(findings[i].check);
  if (!others.empty()) line += fmt::format("; and {} more ({})", findings.size() - 1, join(others, ", "));
  return line;
}

std::string report_json(const Verdict& verdict, const Allocation& allocation) {
  ordered_json json{{"outcome", to_string(verdict.outcome())},
                    {"exclude", verdict.exclude()},
                    {"job", to_json(verdict.job)},
                    {"nodes", ordered_json::array()},
                    {"not_checked", ordered_json::array()},
                    {"ranks", ordered_json::array()},
                    {"links", ordered_json::array()}};
  for (const NodeVerdict& node : verdict.nodes)
    json["nodes"].push_back({{"node", node.node},
                             {"outcome", to_string(node.outcome())},
                             {"ranks", node.ranks},
                             {"findings", to_json(node.findings)}});
  for (const Finding& finding : verdict.not_checked)
    json["not_checked"].push_back({{"check", finding.check}, {"why", valid_utf8(finding.what)}});
  for (const RankFacts& facts : allocation.ranks) json["ranks"].push_back(ordered_json::parse(to_json_text(facts)));
  for (const LinkSpeed& link : allocation.speed.links)
    json["links"].push_back({{"kind", to_string(link.kind)},
                             {"from_rank", link.from},
                             {"to_rank", link.to},
                             {"ranks", link.ranks},
                             {"message_bytes", link.message.value()},
                             {"bandwidth_bytes_per_s", link.bandwidth.value()}});
  return json.dump(2) + "\n";
}

}  // namespace sailor::preflight
