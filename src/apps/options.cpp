#include "apps/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>

#include "apps/command_table.hpp"
#include "apps/written_files.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"

namespace sailor::apps {

namespace {

namespace po = boost::program_options;

/// Why `text` is not a valid value of the option; std::nullopt if it is.
std::optional<std::string> problem_with(const Option& option, const std::string& text) {
  if (!option.choices.empty()) {
    if (std::find(option.choices.begin(), option.choices.end(), text) != option.choices.end()) return std::nullopt;
    return fmt::format("'{}' is not one of: {}", text, join(option.choices, ", "));
  }
  if (option.type == OptionType::text || option.type == OptionType::flag) return std::nullopt;
  double value = 0.0;
  const char* const end = text.data() + text.size();
  if (option.type == OptionType::integer) {
    std::int64_t whole = 0;
    const auto [stop, code] = std::from_chars(text.data(), end, whole);
    if (code == std::errc::result_out_of_range) return fmt::format("'{}' is too large", text);
    if (code != std::errc() || stop != end) return fmt::format("'{}' is no integer", text);
    if (option.narrow && (whole > std::numeric_limits<int>::max() || whole < std::numeric_limits<int>::min()))
      return fmt::format("'{}' is too large", text);
    value = static_cast<double>(whole);
  } else {
    const auto [stop, code] = std::from_chars(text.data(), end, value);
    if (code == std::errc::result_out_of_range && stop == end)
      return fmt::format("'{}' is too large or too small for a number", text);
    if (code != std::errc() || stop != end || !std::isfinite(value)) return fmt::format("'{}' is no number", text);
  }
  if (value >= option.minimum && value <= option.maximum) return std::nullopt;
  const bool low = option.minimum > -1e300;
  const bool high = option.maximum < 1e300;
  const std::string allowed = low && high ? fmt::format("between {} and {}", option.minimum, option.maximum)
                              : low       ? fmt::format("at least {}", option.minimum)
                                          : fmt::format("at most {}", option.maximum);
  return fmt::format("'{}' is out of range: it must be {}", text, allowed);
}

std::optional<bool> parse_switch(const std::string& text) {
  for (const char* word : {"1", "true", "yes", "on"})
    if (equal_ignoring_case(text, word)) return true;
  for (const char* word : {"0", "false", "no", "off"})
    if (equal_ignoring_case(text, word)) return false;
  return std::nullopt;
}

/// Checks the values of one option from one source; splits lists at commas.
Result<std::vector<std::string>> checked(const Option& option, const std::vector<std::string>& given,
                                         const std::string& where) {
  std::vector<std::string> values;
  for (const std::string& text : given) {
    if (option.repeatable) {
      for (std::string& part : split(text, ',')) values.push_back(std::move(part));
    } else {
      values.push_back(text);
    }
  }
  if (values.empty() || std::any_of(values.begin(), values.end(), [](const auto& value) { return value.empty(); }))
    return fail(ErrorCode::usage, fmt::format("{}: the value is empty", where));
  for (const std::string& value : values)
    if (const auto problem = problem_with(option, value))
      return fail(ErrorCode::usage, fmt::format("{}: {}", where, *problem));
  return values;
}

/// The values of one option in a TOML file, as text; errors are recorded in the document.
std::vector<std::string> read_toml(const TomlTable& root, const Option& option) {
  const std::string key = toml_key(option.name);
  std::vector<std::string> values;
  switch (option.type) {
    case OptionType::flag:
      return {root.boolean(key) ? "true" : "false"};
    case OptionType::integer:
      if (option.repeatable)
        for (const std::int64_t value : root.integers(key)) values.push_back(fmt::to_string(value));
      else
        values.push_back(fmt::to_string(root.integer(key)));
      break;
    case OptionType::number:
      // Lists of numbers are arrays of strings; no program has one so far.
      if (option.repeatable)
        values = root.texts(key);
      else
        values.push_back(fmt::to_string(root.number(key)));
      break;
    case OptionType::text:
      values = option.repeatable ? root.texts(key) : std::vector{root.text(key)};
      break;
  }
  for (const std::string& value : values)
    if (const auto problem = problem_with(option, value)) root.reject(key, fmt::format("{}: {}", key, *problem));
  return values;
}

std::string quoted_if_text(const Option& option, const std::string& value) {
  const bool bare = option.type == OptionType::flag || option.type == OptionType::integer ||
                    (option.type == OptionType::number && !option.repeatable);
  return bare ? value : toml_quote(value);
}

}  // namespace

void AnyOptionValue::check_declared() const {
  if (!name_.empty()) return;
  fmt::print(stderr, "sailor: the program reads an option that its table does not have\n");
  std::abort();
}

void AnyOptionValue::assign(std::vector<std::string> words, ValueSource source) {
  convert(words);
  words_ = std::move(words);
  source_ = source;
}

namespace {

void convert_word(const std::string& word, bool& value) { value = word == "true"; }
void convert_word(const std::string& word, std::string& value) { value = word; }
void convert_word(const std::string& word, std::int64_t& value) { value = std::stoll(word); }
void convert_word(const std::string& word, int& value) { value = std::stoi(word); }
void convert_word(const std::string& word, double& value) {
  std::from_chars(word.data(), word.data() + word.size(),
                  value);  // std::stod would throw for subnormal numbers, and depends on the locale
}

template <typename T>
struct IsList : std::false_type {};
template <typename T>
struct IsList<std::vector<T>> : std::true_type {
  using item = T;
};

template <typename T>
constexpr OptionType type_of() {
  if constexpr (IsList<T>::value) return type_of<typename IsList<T>::item>();
  if constexpr (std::is_same_v<T, bool>) return OptionType::flag;
  if constexpr (std::is_same_v<T, double>) return OptionType::number;
  if constexpr (std::is_integral_v<T>) return OptionType::integer;
  return OptionType::text;
}

}  // namespace

template <typename T>
void OptionValue<T>::convert(const std::vector<std::string>& words) {
  value_ = {};
  if constexpr (IsList<T>::value)
    for (const std::string& word : words) convert_word(word, value_.emplace_back());
  else if (!words.empty())
    convert_word(words.back(), value_);
}

template <typename T>
Option option(OptionValue<T>& value, Option row) {
  value.set_name(row.name);
  row.value = &value;
  row.type = type_of<T>();
  row.repeatable = IsList<T>::value;
  row.narrow = std::is_same_v<T, int> || std::is_same_v<T, std::vector<int>>;
  return row;
}

template class OptionValue<bool>;
template class OptionValue<std::string>;
template class OptionValue<std::int64_t>;
template class OptionValue<int>;
template class OptionValue<double>;
template class OptionValue<std::vector<std::string>>;
template class OptionValue<std::vector<int>>;
template Option option(OptionValue<bool>& value, Option row);
template Option option(OptionValue<std::string>& value, Option row);
template Option option(OptionValue<std::int64_t>& value, Option row);
template Option option(OptionValue<int>& value, Option row);
template Option option(OptionValue<double>& value, Option row);
template Option option(OptionValue<std::vector<std::string>>& value, Option row);
template Option option(OptionValue<std::vector<int>>& value, Option row);

Positional positional(OptionValue<std::string>& value, Positional row) {
  value.set_name(row.name);
  row.value = &value;
  return row;
}

Positional positional(OptionValue<std::vector<std::string>>& value, Positional row) {
  value.set_name(row.name);
  row.value = &value;
  row.repeatable = true;
  return row;
}

std::vector<Option> all_options(const CommandLine& line) {
  std::vector<Option> options = line.options;
  const auto add = [&](auto member, Option row) {
    CommonOptions unused;  // of a table that is only shown
    row = option((line.common != nullptr ? line.common : &unused)->*member, std::move(row));
    if (line.common == nullptr) row.value = nullptr;
    options.push_back(std::move(row));
  };
  add(&CommonOptions::config,
      {.name = "config", .value_name = "FILE", .help = "TOML file with values for these options"});
  add(&CommonOptions::print_config,
      {.name = "print-config", .help = "print every value and who set it, as TOML, and exit"});
  add(&CommonOptions::verbose, {.name = "verbose", .letter = 'v', .help = "say more on stderr"});
  options.push_back({.name = "version", .letter = 'V', .help = "print the version and exit", .type = OptionType::flag});
  options.push_back({.name = "help", .letter = 'h', .help = "print this text and exit", .type = OptionType::flag});
  return options;
}

std::string environment_name(std::string_view option) {
  std::string name = "SAILOR_";
  for (const char c : option) name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

std::string toml_key(std::string_view option) {
  std::string key(option);
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

/// Collects values from the source of lowest precedence to the highest, so that the last one wins.
class Parser {
 public:
  Parser(const CommandLine& line, const Environment& environment)
      : line_(line), environment_(environment), table_(all_options(line)) {
    for (const Option& option : table_) {
      Value value{.option = option, .words = {}, .source = ValueSource::default_value};
      if (!option.default_value.empty())
        value.words = option.repeatable ? split(option.default_value, ',') : std::vector{option.default_value};
      values_.emplace(option.name, std::move(value));
    }
    for (const Positional& positional : line.positionals) positionals_[positional.name];
  }

  /// Sets the values that the rows point to, and the text of --print-config.
  Result<void> parse(const std::vector<std::string>& arguments) {
    auto from_command_line = read_command_line(arguments);
    if (!from_command_line) return usage_error(from_command_line.error());
    // The path of the configuration file itself comes from the command line or the environment.
    std::string config;
    if (const auto variable = environment_.find("SAILOR_CONFIG"); variable != environment_.end())
      config = variable->second;
    if (const auto given = from_command_line->find("config"); given != from_command_line->end())
      config = given->second.back();
    if (!config.empty())
      if (auto read = read_config(config); !read) return usage_error(read.error());
    if (auto read = read_environment(); !read) return usage_error(read.error());
    for (const auto& [name, given] : *from_command_line) set(name, given, ValueSource::command_line);
    for (const auto& [name, value] : values_)
      if (value.option.value != nullptr) value.option.value->assign(value.words, value.source);
    if (!*line_.common->print_config) {
      if (auto complete = check_positionals(); !complete) return usage_error(complete.error());
      SAILOR_CHECK(check_written());
    }
    for (const Positional& positional : line_.positionals) {
      const std::vector<std::string>& words = positionals_.find(positional.name)->second;
      positional.value->assign(words, words.empty() ? ValueSource::default_value : ValueSource::command_line);
    }
    line_.common->effective_values = print_config();
    return {};
  }

 private:
  using Values = std::map<std::string, std::vector<std::string>, std::less<>>;
  struct Value {
    Option option;
    std::vector<std::string> words;
    ValueSource source = ValueSource::default_value;
  };

  tl::unexpected<Error> usage_error(Error error) const {
    const std::string see = fmt::format("see {} --help", line_.program);
    error.code = ErrorCode::usage;
    error.hint = error.hint.empty() ? see : fmt::format("{} ({})", error.hint, see);
    return fail(std::move(error));
  }

  void set(std::string_view name, std::vector<std::string> words, ValueSource source) {
    Value& value = values_.find(name)->second;
    value.words = std::move(words);
    value.source = source;
  }

  Result<Values> read_command_line(const std::vector<std::string>& arguments) {
    po::options_description description;
    for (const Option& option : table_) {
      const std::string names = option.letter != 0 ? fmt::format("{},{}", option.name, option.letter) : option.name;
      if (option.type == OptionType::flag)
        description.add_options()(names.c_str(), "");
      else
        description.add_options()(names.c_str(), po::value<std::string>(), "");
    }
    namespace style = po::command_line_style;
    std::vector<po::option> parsed;
    const std::vector<std::string> before_dashes = take_behind_dashes(arguments);
    try {
      parsed = po::command_line_parser(before_dashes)
                   .options(description)
                   .style(style::unix_style & ~style::allow_guessing)
                   .run()
                   .options;
    } catch (const po::unknown_option& error) {
      return unknown_option(error.get_option_name());
    } catch (const po::error_with_option_name& error) {
      return wrong_syntax(error.get_option_name());
    } catch (const po::error& error) {
      return fail(ErrorCode::usage, error.what());
    }

    Values raw;
    std::vector<std::string> rest;
    for (const po::option& item : parsed) {
      if (item.string_key.empty())
        rest.insert(rest.end(), item.value.begin(), item.value.end());
      else if (is_option(item))
        return wrong_syntax(item.string_key);
      else if (item.value.empty())
        raw[item.string_key].emplace_back("true");
      else
        raw[item.string_key].insert(raw[item.string_key].end(), item.value.begin(), item.value.end());
    }
    Values values;
    for (const auto& [name, given] : raw) {
      const Option& option = values_.find(name)->second.option;
      const std::string where = "--" + name;
      if (given.size() > 1 && !option.repeatable && option.type != OptionType::flag)
        return fail(ErrorCode::usage,
                    fmt::format("{} is given {} times: '{}'", where, given.size(), join(given, "', '")),
                    "give it once");
      auto good = checked(option, given, where);
      if (!good) return fail(good.error());
      values[name] = *std::move(good);
    }
    SAILOR_CHECK(place_positionals(rest));
    return values;
  }

  /// For "--model --nodes 3" Boost takes "--nodes" as the value of --model. "--model=--nodes" says that it is meant.
  [[nodiscard]] bool is_option(const po::option& item) const {
    if (item.value.size() != 1 || item.original_tokens.size() != 2) return false;
    const std::string_view value(item.value.front());
    return value.starts_with("--") && values_.contains(value.substr(2, value.find('=') - 2));
  }

  tl::unexpected<Error> unknown_option(std::string name) const {
    while (name.starts_with('-')) name.erase(0, 1);
    name = name.substr(0, name.find('='));
    if (name.size() <= 1) return fail(ErrorCode::usage, fmt::format("unknown option '-{}'", name));
    std::vector<std::string> known;
    for (const Option& option : table_) known.push_back(option.name);
    const auto near = closest(name, known);
    return fail(ErrorCode::usage, fmt::format("unknown option '--{}'", name),
                near ? fmt::format("did you mean '--{}'?", *near) : "");
  }

  tl::unexpected<Error> wrong_syntax(std::string name) const {
    while (name.starts_with('-')) name.erase(0, 1);
    for (const Option& option : table_) {
      if (option.name != name && std::string(1, option.letter) != name) continue;
      if (option.type == OptionType::flag)
        return fail(ErrorCode::usage, fmt::format("option '--{}' takes no value", option.name));
      return fail(ErrorCode::usage, fmt::format("option '--{}' needs a value ({})", option.name, option.value_name));
    }
    return fail(ErrorCode::usage, fmt::format("option '--{}' is written wrongly", name));
  }

  /// Splits off what follows "--", if that is for a positional of its own.
  std::vector<std::string> take_behind_dashes(std::vector<std::string> arguments) {
    if (line_.positionals.empty() || !line_.positionals.back().behind_dashes) return arguments;
    const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
    if (dashes == arguments.end()) return arguments;
    positionals_.find(line_.positionals.back().name)->second.assign(dashes + 1, arguments.end());
    arguments.erase(dashes, arguments.end());
    return arguments;
  }

  Result<void> place_positionals(const std::vector<std::string>& rest) {
    std::size_t next = 0;
    for (const Positional& positional : line_.positionals) {
      if (positional.behind_dashes) continue;
      auto& values = positionals_.find(positional.name)->second;
      while (next < rest.size() && (positional.repeatable || values.empty())) values.push_back(rest[next++]);
    }
    if (next == rest.size()) return {};
    if (line_.positionals.empty())
      return fail(ErrorCode::usage, fmt::format("unexpected argument '{}'", rest[next]),
                  fmt::format("{} takes options only", line_.program));
    return fail(ErrorCode::usage,
                fmt::format("unexpected argument '{}' after {}", rest[next], line_.positionals.back().name));
  }

  Result<void> check_positionals() const {
    for (const Positional& positional : line_.positionals)
      if (positional.required && positionals_.find(positional.name)->second.empty())
        return fail(ErrorCode::usage, fmt::format("{} is missing: {}", positional.name, positional.help));
    return {};
  }

  Result<void> read_config(const std::string& path) {
    auto document = TomlDocument::load(path);
    if (!document) return fail(document.error(), "--config");
    const TomlTable root = document->root();
    std::vector<std::string> known;
    for (const Option& option : table_) {
      if (!not_configurable(option.name)) known.push_back(toml_key(option.name));
      if (not_configurable(option.name) || !root.has(toml_key(option.name))) continue;
      set(option.name, read_toml(root, option), ValueSource::config_file);
    }
    return document->finish(known);
  }

  Result<void> read_environment() {
    for (const Option& option : table_) {
      const std::string name = environment_name(option.name);
      const auto found = environment_.find(name);
      if (found == environment_.end() || found->second.empty()) continue;  // an empty value counts as unset
      if (not_configurable(option.name) && option.name != "config") continue;
      if (option.type == OptionType::flag) {
        const auto on = parse_switch(found->second);
        if (!on)
          return fail(ErrorCode::usage,
                      fmt::format("environment variable {}: '{}' is neither 1 nor 0", name, found->second));
        set(option.name, {*on ? "true" : "false"}, ValueSource::environment);
        continue;
      }
      auto good = checked(option, {found->second}, "environment variable " + name);
      if (!good) return fail(good.error());
      set(option.name, *std::move(good), ValueSource::environment);
    }
    return {};
  }

  /// Refuses outputs that would replace inputs or each other.
  Result<void> check_written() const {
    std::vector<std::string> others;
    for (const auto& [name, words] : positionals_) others.insert(others.end(), words.begin(), words.end());
    for (const auto& [name, value] : values_) {
      const Option& option = value.option;
      if (option.type != OptionType::text || option.writes || !option.choices.empty()) continue;
      for (const std::string& word : value.words) {
        // A name is no file of this name in the working directory.
        if (option.value_name == "NAME" && !word.ends_with(".toml") && !word.ends_with(".json")) continue;
        others.push_back(word);
        if (option.value_name != "PREFIX") continue;
        others.push_back(word + ".bin");
        others.push_back(word + ".idx");
      }
    }
    std::vector<WrittenFile> written;
    for (const Option& option : table_)
      if (const auto& words = values_.find(option.name)->second.words; option.writes && !words.empty())
        written.push_back({.option = option.name, .path = words.back()});
    return check_written_files(written, others);
  }

  [[nodiscard]] std::string print_config() const {
    std::string output;
    for (const auto& [name, value] : values_) {
      if (not_configurable(name)) continue;
      const std::string key = toml_key(name);
      if (value.words.empty() && value.option.type != OptionType::flag) {
        output += fmt::format("# {} is not set\n", key);
        continue;
      }
      std::string shown;
      if (value.option.type == OptionType::flag) {
        shown = !value.words.empty() && value.words.back() == "true" ? "true" : "false";
      } else if (value.option.repeatable) {
        std::vector<std::string> parts;
        for (const std::string& part : value.words) parts.push_back(quoted_if_text(value.option, part));
        shown = fmt::format("[{}]", join(parts, ", "));
      } else {
        shown = quoted_if_text(value.option, value.words.back());
      }
      std::string who = "default";
      if (value.source == ValueSource::config_file) who = "config file " + *line_.common->config;
      if (value.source == ValueSource::environment) who = "environment " + environment_name(name);
      if (value.source == ValueSource::command_line) who = "command line";
      output += fmt::format("{} = {}  # {}\n", key, shown, who);
    }
    return output;
  }

  const CommandLine& line_;
  const Environment& environment_;
  std::vector<Option> table_;
  std::map<std::string, Value, std::less<>> values_;
  Values positionals_;
};

bool not_configurable(std::string_view option) {
  return option == "config" || option == "print-config" || option == "version" || option == "help";
}

Result<bool> parse_options(const CommandLine& line, const std::vector<std::string>& arguments,
                           const Environment& environment) {
  // Handled first, so that help is available for a command line that is wrong elsewhere.
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument == "--help" || argument == "-h") {
      fmt::print("{}", help_text(line));
      return false;
    }
    if (argument == "--version" || argument == "-V") {
      fmt::print("{}", version_text(line.program.substr(0, line.program.find(' ')), arguments, environment, &line));
      return false;
    }
  }
  SAILOR_CHECK(Parser(line, environment).parse(arguments));
  if (!*line.common->print_config) return true;
  fmt::print("{}", line.common->effective_values);
  return false;
}

namespace shared {

Option model() {
  return {.name = "model",
          .value_name = "NAME",
          .help = "model name or alias, or a model file: *.toml, or a config.json of Hugging Face"};
}
Option models_folder() {
  return {
      .name = "models", .value_name = "DIR", .help = "folder of model files [default: models/ of the profiles folder]"};
}
Option framework() {
  return {.name = "framework",
          .value_name = "NAME",
          .help = "training framework: a name of frameworks/ of the profiles folder, or a file (*.toml)",
          .default_value = "sailor"};
}
Option gpus_file() {
  return {.name = "gpus", .value_name = "FILE", .help = "GPU catalogue [default: gpus.toml of the profiles folder]"};
}
Option profile_store() {
  return {.name = "profile",
          .value_name = "STORE",
          .help =
              "profile store: a folder of *.h5 files, one such file, or figures that come with Sailor: published "
              "(others'), measured (ours, of H100 and H200)"};
}
Option site(const std::string& what) {
  return {.name = "site",
          .value_name = "NAME",
          .help = fmt::format("site file with {}: a name of its folder, or a file (*.toml) [default: the one that "
                              "names the cluster]",
                              what)};
}
Option node_facts() {
  return {.name = "node-facts",
          .value_name = "FILE",
          .help = "what sailor-launch --write-node-facts wrote on the host: in a container there may be no slurm.conf"};
}
Option partition() { return {.name = "partition", .letter = 'p', .value_name = "NAME", .help = "Slurm partition"}; }
Option account() { return {.name = "account", .letter = 'A', .value_name = "NAME", .help = "Slurm account to charge"}; }
Option time_limit() {
  return {.name = "time",
          .letter = 't',
          .value_name = "TIME",
          .help = "time limit of the job as Slurm writes it: minutes, H:MM:SS, D-HH or D-HH:MM:SS"};
}
Option nodes() {
  return {
      .name = "nodes", .letter = 'N', .value_name = "N", .help = "number of nodes", .minimum = 1, .maximum = 1 << 20};
}
Option format() {
  return {.name = "format",
          .value_name = "FORMAT",
          .help = "how to write the result to stdout",
          .default_value = "table",
          .choices = {"table", "json", "toml"}};
}
Option output() {
  return {.name = "output", .letter = 'o', .value_name = "FILE", .help = "file to write the result to"};
}

}  // namespace shared

}  // namespace sailor::apps
