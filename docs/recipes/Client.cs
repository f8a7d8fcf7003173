// .NET 10 or newer: with-forgelet.sh dotnet run Client.cs
using System.Text.Json;

var file = Environment.GetEnvironmentVariable("FORGELET_READY_FILE")!;
var ready = JsonDocument.Parse(File.ReadAllText(file)).RootElement;
var url = ready.GetProperty("url").GetString();

using var http = new HttpClient();
(await http.PostAsync($"{url}/-/testing/reset", null)).EnsureSuccessStatusCode();

http.DefaultRequestHeaders.Add("PRIVATE-TOKEN", ready.GetProperty("root_token").GetString());
var content = new StringContent("{\"name\": \"hello\"}", System.Text.Encoding.UTF8, "application/json");
var answer = (await http.PostAsync($"{url}/api/v4/projects", content)).EnsureSuccessStatusCode();
var made = JsonDocument.Parse(await answer.Content.ReadAsStringAsync()).RootElement;
var text = await http.GetStringAsync($"{url}/api/v4/projects/{made.GetProperty("id").GetInt64()}");
var found = JsonDocument.Parse(text).RootElement;
Console.WriteLine($"made {found.GetProperty("path_with_namespace").GetString()}");
