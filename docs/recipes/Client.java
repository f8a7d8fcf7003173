import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Pattern;

/** Java 17 or newer, without any library: with-forgelet.sh java Client.java */
public class Client {
    static final HttpClient http = HttpClient.newHttpClient();

    public static void main(String[] arguments) throws IOException, InterruptedException {
        var ready = Files.readString(Path.of(System.getenv("FORGELET_READY_FILE")));
        String url = value(ready, "url"), token = value(ready, "root_token");

        var reset = http.send(
            HttpRequest.newBuilder(URI.create(url + "/-/testing/reset")).POST(BodyPublishers.noBody()).build(),
            BodyHandlers.ofString());
        check(reset, 204);

        var api = url + "/api/v4/projects";
        var made = http.send(
            HttpRequest.newBuilder(URI.create(api)).header("PRIVATE-TOKEN", token)
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofString("{\"name\": \"hello\"}")).build(),
            BodyHandlers.ofString());
        check(made, 201);

        var found = http.send(
            HttpRequest.newBuilder(URI.create(api + "/" + value(made.body(), "id")))
                .header("PRIVATE-TOKEN", token).build(),
            BodyHandlers.ofString());
        check(found, 200);
        System.out.println("made " + value(found.body(), "path_with_namespace"));
    }

    static void check(HttpResponse<String> answer, int status) {
        if (answer.statusCode() != status) {
            throw new AssertionError(answer.statusCode() + ": " + answer.body());
        }
    }

    /** Returns the first value of a key. A real test would use a JSON library. */
    static String value(String json, String key) {
        var found = Pattern.compile("\"" + key + "\"\\s*:\\s*\"?([^\",}]*)").matcher(json);
        if (!found.find()) {
            throw new AssertionError("no " + key + " in " + json);
        }
        return found.group(1);
    }
}
