#include "core/terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>

#include "core/output_fit.hpp"
#include "core/text.hpp"

namespace sailor {

namespace {

/// Three significant digits without an exponent, for values in [1, 1024).
std::string three_digits(double value) {
  const double magnitude = std::abs(value);
  if (magnitude >= 99.95) return fmt::format("{:.0f}", value);
  if (magnitude >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

constexpr std::size_t least_folded = 26;  // columns of text that is worth folding

/// Which columns of a table are shown, and how wide.
struct Layout {
  std::vector<std::size_t> shown{};
  std::vector<std::size_t> widths{};  ///< of all columns
  std::vector<std::string> left_out{};

  [[nodiscard]] std::size_t total() const {
    return std::accumulate(shown.begin(), shown.end(), 2 * std::max<std::size_t>(shown.size(), 1) - 2,
                           [&](std::size_t sum, std::size_t c) { return sum + widths[c]; });
  }
};

bool is_among(const std::vector<std::string>& titles, const std::string& title) {
  return std::find(titles.begin(), titles.end(), title) != titles.end();
}

/// The column to leave out next: the rightmost detail, else the rightmost that is no key, else the rightmost key. The
/// first one stays, and `folded` too; the end if nothing else is left.
std::vector<std::size_t>::iterator least_important(Layout& layout, const std::vector<Table::Column>& columns,
                                                   std::optional<std::size_t> folded, const OutputFit& fit) {
  const auto importance = [&](std::size_t column) {
    const std::string& title = columns[column].title;
    return is_among(fit.key_columns, title) ? 2 : is_among(fit.detail_columns, title) ? 0 : 1;
  };
  auto least = layout.shown.end();
  for (auto at = layout.shown.begin() + 1; at < layout.shown.end(); ++at)
    if (folded != *at && (least == layout.shown.end() || importance(*at) <= importance(*least))) least = at;
  return least;
}

/// Where a table is too wide, its last column is folded if it is aligned left, and others are left out.
Layout lay_out(const std::vector<Table::Column>& columns, const std::vector<std::vector<std::string>>& rows,
               const OutputFit& fit) {
  Layout layout;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    std::size_t widest = text_width(columns[c].title);
    for (const auto& row : rows) widest = std::max(widest, text_width(row[c]));
    layout.widths.push_back(widest);
    layout.shown.push_back(c);
  }
  if (fit.columns == 0 || layout.total() <= fit.columns) return layout;
  const std::size_t last = columns.size() - 1;
  const std::size_t unfolded = layout.widths[last];
  const std::size_t title = text_width(columns[last].title);
  std::optional<std::size_t> folded;
  if (columns[last].align == Align::left && !is_among(fit.detail_columns, columns[last].title)) folded = last;
  if (folded) layout.widths[last] = std::min(unfolded, std::max(least_folded, title));
  while (layout.total() > fit.columns) {
    const auto least = least_important(layout, columns, folded, fit);
    if (least == layout.shown.end()) break;
    layout.shown.erase(least);
  }
  for (std::size_t c = 0; c <= last; ++c)
    if (std::find(layout.shown.begin(), layout.shown.end(), c) == layout.shown.end())
      layout.left_out.push_back(columns[c].title);
  if (folded) {
    const std::size_t others = layout.total() - layout.widths[last];
    layout.widths[last] = std::clamp(fit.columns > others ? fit.columns - others : 0,
                                     std::max(title, std::min<std::size_t>(unfolded, 8)), unfolded);
  }
  return layout;
}

}  // namespace

std::string format_time(Seconds time) {
  const double s = time.value();
  if (!std::isfinite(s)) return "-";
  if (s == 0.0) return "0 s";
  const double magnitude = std::abs(s);
  if (magnitude >= 0.9995) return three_digits(s) + " s";
  if (magnitude >= 0.9995e-3) return three_digits(s * 1e3) + " ms";
  return three_digits(s * 1e6) + " us";
}

std::string format_bytes(Bytes amount) {
  static constexpr std::array<const char*, 5> units{"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = amount.value();
  if (std::abs(value) < 1024.0) return fmt::format("{:.0f} B", value);
  std::size_t unit = 0;
  value /= 1024.0;
  while (std::abs(value) >= 1024.0 && unit + 1 < units.size()) {
    value /= 1024.0;
    ++unit;
  }
  return three_digits(value) + " " + units[unit];
}

std::string format_bandwidth(BytesPerSecond rate) {
  const double value = rate.value();
  if (std::abs(value) >= 1e9) return three_digits(value / 1e9) + " GB/s";
  if (std::abs(value) >= 1e6) return three_digits(value / 1e6) + " MB/s";
  return three_digits(value / 1e3) + " kB/s";
}

std::string format_usd(Usd amount) {
  const double value = amount.value();
  if (value == 0.0 || std::abs(value) >= 1.0) return fmt::format("${:.2f}", value);
  const int digits = std::min(12, 2 - static_cast<int>(std::floor(std::log10(std::abs(value)))));
  return fmt::format("${:.{}f}", value, digits);
}

std::string plural(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void Table::add_row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::fold_constant_columns(const std::vector<std::string_view>& titles) {
  std::string folded;
  if (rows_.size() < 2) return folded;
  for (std::size_t c = columns_.size(); c-- > 0;) {
    const std::string value = rows_.front()[c];
    const bool named = std::find(titles.begin(), titles.end(), columns_[c].title) != titles.end();
    if (!named || !std::all_of(rows_.begin(), rows_.end(), [&](const auto& row) { return row[c] == value; })) continue;
    folded = fmt::format("{} {}{}{}", columns_[c].title, value, folded.empty() ? "" : ", ", folded);
    const auto at = static_cast<std::ptrdiff_t>(c);
    columns_.erase(columns_.begin() + at);
    for (auto& row : rows_) row.erase(row.begin() + at);
  }
  return folded;
}

std::string Table::to_string() const {
  const OutputFit& fit = output_fit();
  const Layout layout = lay_out(columns_, rows_, fit);
  std::string text;
  const auto add_line = [&](auto&& cell_of) {
    std::string line;
    for (const std::size_t c : layout.shown) {
      const std::string& cell = cell_of(c);
      const std::string padding(layout.widths[c] - text_width(cell), ' ');
      if (c != layout.shown.front()) line += "  ";
      line += columns_[c].align == Align::right ? padding + cell : cell + padding;
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += line + "\n";
  };
  add_line([&](std::size_t c) -> const std::string& { return columns_[c].title; });
  text += std::string(layout.total(), '-') + "\n";
  for (std::vector<std::string> row : rows_) {
    const std::size_t last = layout.shown.back();
    for (const std::string& part : wrap(row[last], std::max<std::size_t>(layout.widths[last], 1), LongWords::broken)) {
      row[last] = part;
      add_line([&](std::size_t c) -> const std::string& { return row[c]; });
      for (std::string& cell : row) cell.clear();
    }
  }
  if (!layout.left_out.empty())
    text += fitted(fmt::format("left out in {} columns: {} (to see {}: {} or a wider terminal)\n", fit.columns,
                               join(layout.left_out, ", "), layout.left_out.size() == 1 ? "it" : "them",
                               fit.how_to_see_all));
  return text;
}

void suggest_next(const std::vector<std::string>& commands) {
  if (::isatty(STDOUT_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0) return;
  std::fflush(stdout);
  for (const std::string& command : commands) fmt::print(stderr, "next: {}\n", command);
}

Progress::Progress(std::string title, std::size_t steps)
    : title_(std::move(title)), steps_(std::max<std::size_t>(steps, 1)), active_(::isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { finish(); }

bool Progress::is_due() const {
  return active_ && std::chrono::steady_clock::now() - last_shown_ > std::chrono::milliseconds(100);
}

void Progress::update(std::size_t done, std::size_t steps, std::string_view what) {
  if (!active_) return;
  steps_ = std::max<std::size_t>(steps, 1);
  done = std::min(done, steps_);
  const double share = static_cast<double>(done) / static_cast<double>(steps_);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  std::string left;
  if (done > 0 && done < steps_) left = ", " + format_time(Seconds(elapsed.count() / share * (1.0 - share))) + " left";
  show(share, what, left);
}

void Progress::update(double share, Seconds left, std::string_view what) {
  if (!active_) return;
  show(std::clamp(share, 0.0, 1.0), what, left.value() > 0.0 ? ", " + format_time(left) + " left" : "");
}

void Progress::show(double share, std::string_view what, std::string_view left) {
  constexpr int cells = 20;
  const int filled = static_cast<int>(share * cells);
  show(fmt::format("{} [{}{}] {:3.0f}%{}  {}", title_, std::string(static_cast<std::size_t>(filled), '#'),
                   std::string(static_cast<std::size_t>(cells - filled), '.'), share * 100.0, left, what));
}

void Progress::update(std::string_view what) {
  if (active_) show(fmt::format("{}: {}", title_, what));
}

void Progress::show(std::string_view line) {
  // A line that the terminal breaks could not be erased.
  const auto columns = terminal_width(STDERR_FILENO);
  fmt::print(stderr, "\r\033[K{}", columns ? first_columns(line, *columns - 1) : line);
  std::fflush(stderr);
  shown_ = true;
  last_shown_ = std::chrono::steady_clock::now();
}

void Progress::finish() {
  if (active_ && shown_) {
    fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
  }
  active_ = false;
}

}  // namespace sailor
