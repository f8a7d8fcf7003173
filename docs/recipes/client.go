// Go, with the standard library: with-forgelet.sh go run client.go
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
)

func main() {
	var ready struct {
		URL   string `json:"url"`
		API   string `json:"api_url"`
		Token string `json:"root_token"`
	}
	text, err := os.ReadFile(os.Getenv("FORGELET_READY_FILE"))
	if err != nil {
		log.Fatal(err)
	}
	if err := json.Unmarshal(text, &ready); err != nil {
		log.Fatal(err)
	}

	call("POST", ready.URL+"/-/testing/reset", "", "", 204, nil)

	var project struct {
		ID   int    `json:"id"`
		Path string `json:"path_with_namespace"`
	}
	call("POST", ready.API+"/projects", ready.Token, `{"name": "hello"}`, 201, &project)
	call("GET", fmt.Sprintf("%s/projects/%d", ready.API, project.ID), ready.Token, "", 200, &project)
	fmt.Println("made", project.Path)
}

func call(method, url, token, body string, status int, into any) {
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("PRIVATE-TOKEN", token)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err != nil {
		log.Fatal(err)
	}
	if answer.StatusCode != status {
		log.Fatalf("%s %s: %s: %s", method, url, answer.Status, said)
	}
	if into != nil {
		if err := json.Unmarshal(said, into); err != nil {
			log.Fatal(err)
		}
	}
}
